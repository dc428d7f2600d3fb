"""Fixtures for tests that need several distributions: whole servers, as users start them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from demo.server_process import ServerProcess

StartServer = Callable[..., ServerProcess]


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """A function `(*options) -> ServerProcess` that starts our server on free ports; none outlives the test."""
    servers: list[ServerProcess] = []

    def start(*options: str) -> ServerProcess:
        server = ServerProcess(options, tmp_path / f"server-{len(servers)}.log")
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        try:
            if server.running:
                server.stop()  # in an orderly way, so that it takes its shared memory along
        finally:
            server.kill()
