"""A server whose backend is reached through a proxy that a test switches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from demo.server_process import ServerProcess
from tests.remote.backends import Backend
from tests.remote.loop_server import LoopServer
from tests.remote.site import RemoteSite, small_server


@contextmanager
def site_behind(proxy: LoopServer, backend: Backend, folder: Path) -> Iterator[RemoteSite]:
    """One server and its engine; `folder` gets the server's log."""
    with ServerProcess(small_server(backend.through(proxy.port)), folder / "server.log") as server:
        site = RemoteSite(server)
        try:
            yield site
        finally:
            site.close()
