"""Connections that speak an older ZMTP, or something else, have no effect: raw bytes against a whole server."""

from __future__ import annotations

import ast
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import zmq

from core.tests.server.conftest import StartServer
from lmcache_client.client import EngineClient
from lmcache_client.errors import NoAnswerError
from lmcache_client.operations import CLEAR, NOOP
from lmcache_client.sockets import open_socket
from lmcache_core.app.server import Server
from lmcache_devkit.fake_engine import FakeEngine

ROOT = Path(__file__).resolve().parents[3]
TOKENS = list(range(64))
CLEAR_BY_FORCE = (b"\x01", b"\x14", b"\xc3")
"""uid, operation 20, True"""
LISTENING_SECONDS = 0.3


def old_frames(*frames: bytes) -> bytes:
    """One message as ZMTP 1.0 and 2.0 have it: length with the flags, flags, body; the other way round from 2.0 on."""
    return b"".join(bytes([len(frame) + 1, frame is not frames[-1]]) + frame for frame in frames)


def newer_frames(*frames: bytes) -> bytes:
    return b"".join(bytes([frame is not frames[-1], len(frame)]) + frame for frame in frames)


def http_with_frames() -> bytes:
    """What a web page can send: the head of an HTTP request, read as frames, and operations in its body."""
    head = b"POST / HTTP/1.1\r\nHost: 127.0.0.1:5555\r\nContent-Type: text/plain\r\nContent-Length: 400\r\n\r\n"
    at = 0
    while at < len(head):  # every length in it is the code of a letter
        at += head[at] + 1
    body = bytes(at - len(head)) + old_frames(b"") + old_frames(*CLEAR_BY_FORCE)
    return head + body.ljust(400, b"\x01")


SIGNATURE = b"\xff" + bytes(7) + b"\x01\x7f"
OLD = {
    "1.0 without a greeting": old_frames(b"") + old_frames(*CLEAR_BY_FORCE),
    "1.0 without a greeting, with an identity": old_frames(b"me") + old_frames(*CLEAR_BY_FORCE),
    "1.0 in an HTTP request": http_with_frames(),
    "1.0 with a long first frame": b"\xff" + (2).to_bytes(8, "big") + b"\x00x" + old_frames(*CLEAR_BY_FORCE),
    "1.0 with a greeting": SIGNATURE + b"\x00\x05" + old_frames(b"") + old_frames(*CLEAR_BY_FORCE),
    "2.0": SIGNATURE + b"\x01\x05" + newer_frames(b"") + newer_frames(*CLEAR_BY_FORCE),
}


def address(endpoint: str) -> tuple[str, int]:
    parts = urlsplit(endpoint)
    assert parts.hostname
    assert parts.port
    return parts.hostname, parts.port


def say(endpoint: str, data: bytes, seconds: float = LISTENING_SECONDS) -> bytes:
    """Send that, and return what comes back until the server hangs up or the time is over."""
    heard = b""
    with socket.create_connection(address(endpoint), timeout=5) as connection:
        connection.sendall(data)
        connection.settimeout(seconds)
        try:
            while part := connection.recv(4096):
                heard += part
        except (TimeoutError, ConnectionResetError):
            pass
    return heard


def until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture
def engine(endpoint: str) -> Iterator[FakeEngine]:
    with FakeEngine(endpoint) as engine:
        assert engine.store(TOKENS)
        yield engine


@pytest.mark.parametrize("how", OLD)
def test_an_old_handshake_carries_no_operation(server: Server, endpoint: str, engine: FakeEngine, how: str) -> None:
    before = server.status()["requests"]["requests"]
    heard = say(endpoint, OLD[how])
    assert b"\x14" not in heard, "the operation was answered"
    assert server.status()["requests"]["requests"] == before
    assert engine.lookup(TOKENS) == 4


@pytest.mark.parametrize("how", OLD)
def test_a_refused_handshake_is_counted_and_a_condition(
    server: Server, endpoint: str, engine: FakeEngine, how: str
) -> None:
    def refused() -> int:
        return int(server.status()["connections"]["refused"])

    assert until(lambda: server.status()["connections"]["ok"] > 0)
    assert refused() == 0
    say(endpoint, OLD[how])
    assert until(lambda: refused() == 1)
    assert until(lambda: "handshakes_refused" in {each["name"] for each in server.status()["conditions"]})
    counted = server.counts().port.connections
    assert (counted.refused, counted.incomplete) == (1, 0)


def test_connections_are_counted_by_how_their_handshake_went(server: Server, endpoint: str) -> None:
    clients = [EngineClient(endpoint) for _ in range(5)]
    for client in clients:
        client.noop()
    hung_up = [say(endpoint, SIGNATURE[:5], seconds=0.01) for _ in range(3)]
    for client in clients[:2]:
        client.close()
    old = [say(endpoint, OLD["2.0"]) for _ in range(4)]
    expected = {"accepted": 12, "closed": 9, "ok": 5, "refused": len(old), "incomplete": len(hung_up), "forbidden": 0}
    until(lambda: server.status()["connections"] == expected)
    assert server.status()["connections"] == expected
    for client in clients:
        client.close()
    assert until(lambda: server.status()["connections"] == expected | {"closed": 12})


def test_handshakes_that_overlap_are_all_counted_in_the_end(server: Server, endpoint: str) -> None:
    """Several are in the middle of it while others succeed, are refused, and hang up."""
    half = [socket.create_connection(address(endpoint)) for _ in range(3)]
    for connection in half:
        connection.sendall(SIGNATURE)
    for _ in range(3):
        with EngineClient(endpoint) as client:
            client.noop()
        say(endpoint, OLD["2.0"])
    for connection in half:
        connection.close()
    expected = {"accepted": 9, "closed": 9, "ok": 3, "refused": 3, "incomplete": 3, "forbidden": 0}
    until(lambda: server.status()["connections"] == expected)
    assert server.status()["connections"] == expected


def test_while_the_thread_is_down_nothing_is_admitted_and_afterwards_everything_is(start_server: StartServer) -> None:
    server = start_server()
    handshakes, endpoint = server._parts.engine_port.handshakes, server.info.engine_endpoint
    assert handshakes
    is_down = True

    def fail() -> None:
        if is_down:
            raise RuntimeError("a fault of ours")
        del handshakes._take_requests
        handshakes._take_requests()

    handshakes._take_requests = fail  # type: ignore[method-assign]
    with EngineClient(endpoint, timeout_seconds=10) as client:
        ticket = client.send(NOOP)
        with pytest.raises(NoAnswerError):
            client.receive(ticket, 0.5)
        assert server.status()["requests"]["requests"] == 0
        restarts = server.status()["threads"]["handshakes"]["restarts"]
        assert restarts > 0
        is_down = False
        assert client.noop() == "OK"
        assert until(lambda: server.status()["connections"]["ok"] == 1)
        assert server.status()["connections"]["accepted"] == 1, "it was connected all the time"


def test_a_server_that_speaks_an_old_protocol_is_not_a_server_for_a_client() -> None:
    """Its answers could be anybody's, such as an HTTP server's error page."""
    with socket.create_server(("127.0.0.1", 0)) as listener, EngineClient(
        f"tcp://127.0.0.1:{listener.getsockname()[1]}", timeout_seconds=0.5
    ) as client:  # fmt: skip
        ticket = client.send(CLEAR, True)
        connection, _ = listener.accept()
        with connection:
            connection.sendall(old_frames(b"") + old_frames(b"\x00", b"\x14"))
            with pytest.raises(NoAnswerError):
                client.receive(ticket)


SHIPPED = ("core/src", "libs", "plugins", "engines", "benchmarks", "demo", "scripts")


WAYS = ("socket", "Socket", "instance", "shadow", "shadow_pyczmq", "proxy", "device")


def ways_to_a_socket(tree: ast.AST) -> Iterator[str]:
    """Calls of `socket` on anything but Python's module, and ways around `Context.socket` and around a context of one's own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in WAYS:
            of, called = ast.unparse(node.func.value), node.func.attr
            if called == "socket" and of != "socket":
                yield "socket"
            elif called != "socket" and of.startswith("zmq"):
                yield f"{of}.{called}"
        elif (
            isinstance(node, ast.ImportFrom)
            and (node.module or "").split(".")[0] == "zmq"
            and node.module != "zmq.utils"
        ):
            yield f"from {node.module}"
        elif isinstance(node, ast.Import):
            yield from (f"import {each.name}" for each in node.names if each.name.startswith("zmq."))


def test_every_socket_of_the_project_is_opened_in_one_place() -> None:
    """`Context.socket` is called in `lmcache_client.sockets`, and for inproc:// where handshakes are decided.  A context of
    zmq.asyncio is passed to `open_socket`, too."""
    found: dict[str, list[str]] = {}
    for path in sorted(each for folder in SHIPPED for each in (ROOT / folder).rglob("*.py")):
        name = str(path.relative_to(ROOT))
        if "tests" in name.split("/") or not ("zmq" in (text := path.read_text()) or "socket" in text):
            continue
        if ways := list(ways_to_a_socket(ast.parse(text))):
            found[name] = ways
    assert found == {
        "core/src/lmcache_core/server/handshakes.py": ["socket"] * 2,
        "libs/client/src/lmcache_client/sockets.py": ["socket"],
        "plugins/p2p/src/lmcache_p2p/owner.py": ["socket"],
        "plugins/p2p/src/lmcache_p2p/peer.py": ["import zmq.asyncio"],
        "plugins/p2p/src/lmcache_p2p/lessee.py": ["import zmq.asyncio"],
    }


@pytest.mark.parametrize(
    "line",
    [
        "context.socket(zmq.REP)",
        "self._context.socket(kind)",
        "zmq.Context.instance()",
        "zmq.Socket(context, zmq.PULL)",
        "from zmq import PULL",
        "from zmq.asyncio import Context",
        "import zmq.asyncio",
        "zmq.proxy(a, b)",
    ],
)
def test_another_way_to_a_socket_would_be_seen(line: str) -> None:
    assert list(ways_to_a_socket(ast.parse(line)))


def test_an_old_handshake_is_refused_by_every_kind_of_socket() -> None:
    """By those to come, too: `open_socket` suffices, and no handler is needed for it."""
    for kind in (zmq.ROUTER, zmq.REP, zmq.PULL, zmq.DEALER, zmq.PAIR, zmq.SUB, zmq.XPUB):
        with zmq.Context() as context, open_socket(context, kind) as listener:
            listener.linger = 0
            if kind == zmq.SUB:
                listener.subscribe(b"")
            port = listener.bind_to_random_port("tcp://127.0.0.1")
            for how, data in OLD.items():
                say(f"tcp://127.0.0.1:{port}", data, seconds=0.05)
                assert not listener.poll(20), (kind, how)
