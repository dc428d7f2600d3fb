"""A whole server in this process."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lmcache_core.app.build import build
from lmcache_core.app.configuration import read_settings
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.app.server import Server
from lmcache_devkit import free_port

StartServer = Callable[..., Server]


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """`start_server(**settings)`: chunks of 16 tokens, 64 MiB of L1, no HTTP unless said otherwise."""
    servers: list[Server] = []

    def start(**settings: object) -> Server:
        port = free_port()
        defaults: dict[str, object] = {
            "host": "127.0.0.1",
            "port": port,
            "chunk_size": 16,
            "l1_size_gb": 1 / 16,
            "http_enabled": False,
            "prometheus_port": 0,
            "shm_name": f"test-{uuid.uuid4().hex}",
        }
        plugins = load_plugins()
        server = build(read_settings({**defaults, **settings}, plugins), plugins)
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.stop(5.0)


@pytest.fixture
def server(start_server: StartServer) -> Server:
    return start_server()


@pytest.fixture
def endpoint(server: Server) -> str:
    return server.info.engine_endpoint
