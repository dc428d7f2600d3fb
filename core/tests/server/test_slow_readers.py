"""Answers wait for connections that read slowly, whatever they ask; a connection that does not read is closed."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
import zmq

from lmcache_client.client import EngineClient
from lmcache_client.operations import Operation
from lmcache_core.contracts.clock import SystemClock
from lmcache_core.contracts.operation import Call, Handler, HandlerMode
from lmcache_core.server.engine_socket import BYTES_MAX, LIBZMQ_ANSWERS_MAX, PAUSE_MAX_SECONDS, EngineSocket
from lmcache_core.server.router import Router
from lmcache_core.server.threads import Pool

MIB = 2**20
SIZED = Operation("sized", 101, (int,), bytes, b"refused")
REQUESTS = 2000
READ_AHEAD = 8
"""Times the bound.  Requests that are read before the first answers are there are carried out: how many those are depends on
how the interpreter switches threads."""


@dataclass(frozen=True)
class Served:
    router: Router
    endpoint: str
    carried_out: list[int] = field(default_factory=list)

    def ends_with(self, condition: Callable[[], bool], seconds: float = 20.0) -> bool:
        deadline = time.monotonic() + seconds
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.01)
        return condition()


Serve = Callable[..., Served]
Connect = Callable[..., "zmq.Socket[bytes]"]


@pytest.fixture
def serve() -> Iterator[Serve]:
    ends: list[Callable[[], None]] = []

    def start(
        mode: HandlerMode = HandlerMode.INLINE, patience_seconds: float = 60.0, host: str = "127.0.0.1"
    ) -> Served:
        def sized(call: Call, size: int) -> bytes:
            served.carried_out.append(size)
            return bytes(size)

        pooled, affine = Pool("pooled", 1), Pool("affine", 1)
        port = EngineSocket(64 * MIB, SystemClock(), patience_seconds)
        router = Router([Handler(SIZED, sized, mode)], pooled, affine, port, SystemClock())
        served = Served(router, router.bind(host, 0))
        threads = [threading.Thread(target=body, daemon=True) for body in (pooled.body(0), affine.body(0), router.run)]
        for thread in threads:
            thread.start()

        def end() -> None:
            for stop in (router.stop, pooled.stop, affine.stop):
                stop()
            for thread in threads:
                thread.join(10)
                assert not thread.is_alive()
            router.close()

        ends.append(end)
        return served

    yield start
    for end in ends:
        end()


@pytest.fixture
def connect() -> Iterator[Connect]:
    with zmq.Context() as context:
        sockets: list[zmq.Socket[bytes]] = []

        def connect(endpoint: str, answers_kept: int = 1000) -> zmq.Socket[bytes]:
            sockets.append(dealer := context.socket(zmq.DEALER))
            dealer.linger = 0
            dealer.rcvhwm = answers_kept
            dealer.sndhwm = 0
            dealer.connect(endpoint)
            return dealer

        yield connect
        for dealer in sockets:
            dealer.close()


def ask(dealer: zmq.Socket[bytes], number: int, size: int) -> None:
    dealer.send_multipart([number.to_bytes(4, "big"), bytes([101]), msgspec.msgpack.encode(size)])


def answers(dealer: zmq.Socket[bytes], count: int, seconds: float = 10.0) -> list[tuple[int, bytes]]:
    """(request, result) of that number of answers, fewer when they do not come."""
    found: list[tuple[int, bytes]] = []
    while len(found) < count and dealer.poll(int(seconds * 1000)):
        uid, _, result = dealer.recv_multipart()
        found.append((int.from_bytes(uid, "big"), msgspec.msgpack.decode(result)))
    return found


@pytest.mark.parametrize("mode", [HandlerMode.INLINE, HandlerMode.AFFINE])
@pytest.mark.parametrize("size", [0, 100, 20_000, 100_000])
def test_a_burst_is_answered_to_the_last_request(serve: Serve, connect: Connect, mode: HandlerMode, size: int) -> None:
    count = min(REQUESTS, BYTES_MAX // (size + 1))
    served = serve(mode)
    dealer = connect(served.endpoint, answers_kept=1)
    for number in range(count):
        ask(dealer, number, size)
    assert served.ends_with(lambda: len(served.carried_out) == count), "it is read before all is asked"
    assert answers(dealer, count) == [(number, bytes(size)) for number in range(count)]
    counters = served.router.counters
    assert (counters.dropped, counters.waiting, counters.waiting_bytes, counters.closed) == (0, 0, 0, 0)


def test_several_connections_burst_at_once(serve: Serve, connect: Connect) -> None:
    served = serve()
    dealers = [connect(served.endpoint) for _ in range(6)]
    for number in range(REQUESTS):
        for dealer in dealers:
            ask(dealer, number, 100)
    for dealer in dealers:
        assert [number for number, _ in answers(dealer, REQUESTS)] == list(range(REQUESTS))


def test_beyond_the_bound_requests_are_refused_and_not_carried_out(serve: Serve, connect: Connect) -> None:
    """Memory is bounded for each connection, and nevertheless each request is answered."""
    served = serve(HandlerMode.AFFINE)
    dealer = connect(served.endpoint, answers_kept=1)
    for number in range(REQUESTS):
        ask(dealer, number, MIB)
    assert served.ends_with(lambda: served.router.counters.requests == REQUESTS)
    assert served.ends_with(lambda: served.router.oldest_seconds == 0)
    assert served.router.counters.waiting_bytes < READ_AHEAD * BYTES_MAX
    carried_out = len(served.carried_out)
    assert BYTES_MAX // MIB <= carried_out < (1 + READ_AHEAD) * BYTES_MAX // MIB, (
        "what waits, what libzmq has, and what the kernel has"
    )
    found = answers(dealer, REQUESTS)
    assert sorted(number for number, _ in found) == list(range(REQUESTS))
    assert [len(result) for _, result in found].count(MIB) == carried_out
    assert [result for _, result in found].count(b"refused") == REQUESTS - carried_out
    ask(dealer, 1, 5)
    assert answers(dealer, 1) == [(1, bytes(5))], "it reads again, and is served again"


@pytest.mark.parametrize("scheme", ["tcp", "ipc"])
def test_who_does_not_read_is_closed_after_the_patience(
    serve: Serve, connect: Connect, caplog: pytest.LogCaptureFixture, tmp_path: Path, scheme: str
) -> None:
    served = serve(patience_seconds=0.5, host="127.0.0.1" if scheme == "tcp" else f"ipc://{tmp_path}/s")
    deaf, honest = connect(served.endpoint, answers_kept=1), connect(served.endpoint)
    for number in range(REQUESTS):
        ask(deaf, number, 20_000)
    assert served.ends_with(lambda: served.router.counters.closed == 1)
    ask(honest, 7, 3)
    assert answers(honest, 1) == [(7, bytes(3))]
    counters = served.router.counters
    assert counters.dropped > 0
    assert "it has read nothing for 0.5 s" in caplog.text
    read = {number for number, _ in answers(deaf, REQUESTS, seconds=1.0)}
    assert len(read) <= REQUESTS - counters.dropped
    ask(deaf, REQUESTS, 4)  # its socket has connected again meanwhile, by itself
    assert answers(deaf, 1) == [(REQUESTS, bytes(4))]
    assert served.ends_with(lambda: not served.router.counters.waiting)


class RawPeer:
    """ZMTP by hand, so that bytes are read from the kernel when the test says so and not before."""

    def __init__(self, endpoint: str) -> None:
        if endpoint.startswith("ipc://"):
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.connect(endpoint.removeprefix("ipc://"))
        else:
            host, port = endpoint.removeprefix("tcp://").split(":")
            self._socket = socket.socket()
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            self._socket.connect((host, int(port)))
        self._socket.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(48))
        ready = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
        self._socket.sendall(bytes([4, len(ready)]) + ready)
        self.read(64)
        command = self.read(2)
        self.read(command[1])

    def ask(self, number: int, size: int) -> None:
        frames = [number.to_bytes(4, "big"), bytes([101]), msgspec.msgpack.encode(size)]
        self._socket.sendall(b"".join(bytes([frame is not frames[-1], len(frame)]) + frame for frame in frames))

    def read(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            part = self._socket.recv(count - len(found))
            if not part:
                raise ConnectionError(f"closed after {len(found)} of {count} bytes")
            found += part
        return found

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def raw_peer() -> Iterator[Callable[[str], RawPeer]]:
    peers: list[RawPeer] = []

    def connect(endpoint: str) -> RawPeer:
        peers.append(RawPeer(endpoint))
        return peers[-1]

    yield connect
    for peer in peers:
        peer.close()


@pytest.mark.parametrize("scheme", ["tcp", "ipc"])
def test_who_reads_slowly_is_never_closed(
    serve: Serve, raw_peer: Callable[[str], RawPeer], tmp_path: Path, scheme: str
) -> None:
    """Some KiB at a time: hundreds of times slower than libzmq's queue would show, for many times the patience."""
    served = serve(patience_seconds=0.5, host="127.0.0.1" if scheme == "tcp" else f"ipc://{tmp_path}/s")
    peer = raw_peer(served.endpoint)
    for number in range(2 * LIBZMQ_ANSWERS_MAX):
        peer.ask(number, 20_000)
    assert served.ends_with(lambda: served.router.counters.waiting > 0)
    for _ in range(40):
        peer.read(16_384)
        time.sleep(0.1)
    assert served.router.counters.closed == 0
    assert served.router.counters.dropped == 0
    assert served.router.counters.waiting > 0
    assert served.ends_with(lambda: served.router.counters.closed == 1), "but it is once it reads no more"


def test_waiting_for_a_reader_takes_a_bounded_number_of_tries(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve()
    tries = 0
    retry = served.router._waiting.retry

    def counted() -> None:
        nonlocal tries
        tries += 1
        retry()

    monkeypatch.setattr(served.router._waiting, "retry", counted)
    deaf = connect(served.endpoint, answers_kept=1)
    for number in range(REQUESTS):
        ask(deaf, number, 20_000)
    assert served.ends_with(lambda: len(served.carried_out) == REQUESTS)
    time.sleep(0.3)
    before, started = tries, time.monotonic()
    time.sleep(1.0)
    assert tries - before <= (time.monotonic() - started) / PAUSE_MAX_SECONDS + 2


def test_connections_that_are_gone_are_forgotten(serve: Serve) -> None:
    served = serve()
    for _ in range(700):
        with EngineClient(served.endpoint) as client:
            assert client.call(SIZED, 1) == bytes(1)
    assert len(served.router._port._peers) <= 512


def test_answers_to_a_connection_that_was_closed_are_dropped_and_counted(
    serve: Serve, raw_peer: Callable[[str], RawPeer]
) -> None:
    served = serve()
    peer = raw_peer(served.endpoint)
    for number in range(REQUESTS):
        peer.ask(number, 20_000)
    assert served.ends_with(lambda: served.router.counters.waiting > 0)
    peer.close()
    assert served.ends_with(lambda: served.router.counters.waiting == 0 and served.router.counters.dropped > 0)
    assert served.router.counters.closed == 0
