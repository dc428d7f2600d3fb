"""Engines over a Unix socket instead of a TCP port."""

from __future__ import annotations

import os
import socket
import stat
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from core.tests.server.conftest import StartServer
from core.tests.server.test_engine_users import OTHER, needs_root, peer_of, result_of
from core.tests.server.test_handshakes import until
from lmcache_client.client import EngineClient
from lmcache_client.errors import ConfigError, ResourceError
from lmcache_core.app.cli import main
from lmcache_core.contracts.clock import SystemClock
from lmcache_core.server.engine_socket import EngineSocket
from lmcache_core.server.peers import UnixListener
from lmcache_devkit import free_port
from lmcache_devkit.fake_engine import FakeEngine

TOKENS = list(range(64))


@pytest.fixture
def path() -> Iterator[Path]:
    """In a folder that every user reaches, and short."""
    path = Path("/tmp") / f"lmcache-{uuid.uuid4().hex[:12]}.sock"
    yield path
    path.unlink(missing_ok=True)


def test_an_engine_stores_and_reads_over_it(start_server: StartServer, path: Path) -> None:
    server = start_server(host=f"ipc://{path}")
    assert server.info.engine_endpoint == f"ipc://{path}"
    with FakeEngine(server.info.engine_endpoint) as engine:
        assert engine.store(TOKENS)
        assert engine.lookup(TOKENS) == 4
        assert engine.retrieve(TOKENS) == [engine.content(TOKENS, chunk) for chunk in range(4)]
    server.stop(1.0)
    assert not path.exists()


@needs_root
def test_only_its_owner_may_connect(start_server: StartServer, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[int] = []
    listen = socket.socket.listen

    def seen(listener: socket.socket, backlog: int = 0) -> None:
        modes.append(stat.S_IMODE(path.stat().st_mode))
        listen(listener, backlog)

    monkeypatch.setattr(socket.socket, "listen", seen)
    old = os.umask(0)
    try:
        server = start_server(host=f"ipc://{path}")
    finally:
        os.umask(old)
    assert modes == [0o600], "its mode before anybody could connect"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert result_of(peer_of(0, f"ipc://{path}")) == "answered"
    peer = peer_of(OTHER, f"ipc://{path}")
    said, _ = peer.communicate(timeout=30)
    assert said.split()[-1] == "ready"
    assert peer.returncode != 0
    path.chmod(0o666)  # what an operator might do; the owner is checked nevertheless
    assert result_of(peer_of(OTHER, f"ipc://{path}")) == "closed"
    assert until(lambda: server.status()["connections"]["forbidden"] == 1)


def test_what_a_dead_server_left_is_replaced_and_a_living_one_is_not(start_server: StartServer, path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    server = start_server(host=f"ipc://{path}")
    with EngineClient(server.info.engine_endpoint) as client:
        assert client.noop() == "OK"
        with pytest.raises(ResourceError, match=r"cannot be opened for engines.*no other server"):
            start_server(host=f"ipc://{path}")
        assert client.noop() == "OK"
    assert path.exists()


def test_a_frozen_server_whose_queue_is_full_is_not_waited_for(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as frozen, ExitStack() as waiting:
        frozen.bind(str(path))
        frozen.listen(1)
        kind = socket.SOCK_STREAM | socket.SOCK_NONBLOCK
        peers = (waiting.enter_context(socket.socket(socket.AF_UNIX, kind)) for _ in range(100))
        assert any(peer.connect_ex(str(path)) for peer in peers), "the queue is full"
        outcome: list[BaseException] = []

        def start() -> None:
            try:
                UnixListener(f"ipc://{path}").close()
            except ResourceError as error:
                outcome.append(error)

        starting = threading.Thread(target=start, daemon=True)
        starting.start()
        starting.join(10.0)
        assert not starting.is_alive(), "it waits for a place in the queue"
        assert "no other server may use it" in str(outcome[0])
    assert path.exists()


def test_a_path_that_libzmq_does_not_take_is_given_back(path: Path) -> None:
    port = EngineSocket(1 << 20, SystemClock())
    port.socket.close()  # so that libzmq refuses every call
    try:
        with pytest.raises(ResourceError, match=f"--host ipc://{path} cannot be opened for engines"):
            port.bind(f"ipc://{path}", 0)
    finally:
        port.close()
    assert not path.exists()
    assert str(path) not in Path("/proc/net/unix").read_text(), "its descriptor is closed"


def test_a_file_that_is_not_a_socket_is_left_alone(start_server: StartServer, path: Path) -> None:
    path.write_text("precious")
    with pytest.raises(ResourceError, match="cannot be opened for engines"):
        start_server(host=f"ipc://{path}")
    assert path.read_text() == "precious"


@pytest.mark.parametrize("host", ["ipc://@abstract", "ipc://relative", "ipc:/one", "ipc:///" + "x" * 120])
def test_other_paths_are_refused(start_server: StartServer, host: str) -> None:
    with pytest.raises(ConfigError, match="Unix socket"):
        start_server(host=host)


def test_ping_asks_where_the_admin_api_says(
    start_server: StartServer, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    http_port = free_port()
    start_server(host=f"ipc://{path}", http_enabled=True, http_port=http_port)
    url = f"http://127.0.0.1:{http_port}"
    assert until(lambda: main(["ping", "kvcache", "--url", url]) == 0)
    assert f"ipc://{path}" in capsys.readouterr().out
