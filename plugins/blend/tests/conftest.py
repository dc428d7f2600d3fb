"""A server that blends, in the process of the tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lmcache_blend.module import BlendModule
from lmcache_core.app.build import build
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.app.server import Server
from lmcache_core.app.settings import ServerSettings
from lmcache_devkit import free_port

CHUNK_TOKENS = 16


def started(**more: Any) -> Server:
    given = {
        "host": "127.0.0.1",
        "port": free_port(),
        "chunk_size": CHUNK_TOKENS,
        "l1_size_gb": 0.0625,
        "disable_logging": True,
        "engine_type": ("blend",),
    }
    server = build(ServerSettings(**{**given, **more}), load_plugins(["blend", "fs", "transfer_torch"]))
    server.start()
    return server


def module_of(server: Server) -> BlendModule:
    module = server.parts.engine_port.modules["blend"]
    assert isinstance(module, BlendModule)
    return module


@pytest.fixture
def server() -> Iterator[Server]:
    server = started()
    yield server
    server.stop(0.0)


@pytest.fixture
def module(server: Server) -> BlendModule:
    return module_of(server)
