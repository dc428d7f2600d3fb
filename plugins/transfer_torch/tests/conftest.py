from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from demo.server_process import HOST, ServerProcess

StartServer = Callable[..., ServerProcess]
OPTIONS = ("--chunk-size", "16", "--l1-size-gb", "0.05")


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """`start_server("--flag", ...)` starts one; the test's end stops all of them."""
    with ExitStack() as stack:
        yield lambda *flags: stack.enter_context(
            ServerProcess([*OPTIONS, *flags], tmp_path / f"server-{len(list(tmp_path.iterdir()))}.log")
        )


@pytest.fixture
def server(start_server: StartServer) -> ServerProcess:
    return start_server()


def endpoint_of(server: ServerProcess) -> str:
    return f"tcp://{HOST}:{server.port}"
