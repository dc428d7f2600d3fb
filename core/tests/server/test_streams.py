"""Requests with many results: grants, cancellation, clients that go, and stops."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import zmq

from lmcache_client.operations import Operation
from lmcache_client.sockets import open_socket
from lmcache_core.contracts.clock import SystemClock
from lmcache_core.contracts.operation import DEFERRED, Call, Handler, HandlerMode, Stream
from lmcache_core.server import router as router_module
from lmcache_core.server.engine_socket import EngineSocket
from lmcache_core.server.router import Router
from lmcache_core.server.threads import Pool

COUNT = Operation("count", 100, (int,), int | None, None)
ECHO = Operation("echo", 101, (int,), int | None, None)
SECONDS = 5.0


class Counting:
    """Answers `count` with a stream that the test feeds."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.wakes = threading.Semaphore(0)

    def count(self, call: Call, first: int) -> Any:
        self.streams.append(call.stream(self.wakes.release))
        if first >= 0:
            self.streams[-1].send(first)
        return DEFERRED


@pytest.fixture(params=HandlerMode)
def served(request: pytest.FixtureRequest) -> Iterator[tuple[Router, Counting, str]]:
    counting = Counting()
    pooled, affine = Pool("pooled", 1), Pool("affine", 1)
    handlers = [Handler(COUNT, counting.count, request.param), Handler(ECHO, lambda call, n: n, HandlerMode.AFFINE)]
    router = Router(handlers, pooled, affine, EngineSocket(1 << 20, SystemClock()), SystemClock())
    endpoint = router.bind("127.0.0.1", 0)
    threads = [threading.Thread(target=body, daemon=True) for body in (pooled.body(0), affine.body(0), router.run)]
    for thread in threads:
        thread.start()
    yield router, counting, endpoint
    for stop in (router.stop, pooled.stop, affine.stop):
        stop()
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive()
    router.close()


class Client:
    def __init__(self, endpoint: str) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = open_socket(self.context, zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect(endpoint)

    def ask(self, uid: bytes, operation: str, value: int) -> None:
        self.socket.send_multipart([uid, msgspec.msgpack.encode(operation), msgspec.msgpack.encode(value)])

    def say(self, uid: bytes, word: bytes) -> None:
        self.socket.send_multipart([uid, b"", word])

    def answer(self, uid: bytes) -> Any:
        """The next result; None at the end of the stream."""
        assert self.socket.poll(int(SECONDS * 1000)), "no answer"
        frames = self.socket.recv_multipart()
        assert frames[0] == uid
        return msgspec.msgpack.decode(frames[2]) if len(frames) > 2 else None

    def is_silent(self) -> bool:
        return not self.socket.poll(100)

    def close(self) -> None:
        self.context.destroy(0)


@pytest.fixture
def client(served: tuple[Router, Counting, str]) -> Iterator[Client]:
    client = Client(served[2])
    yield client
    client.close()


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_each_result_waits_for_its_grant(served: tuple[Router, Counting, str], client: Client) -> None:
    _, counting, _ = served
    client.ask(b"u", "count", 7)
    assert client.answer(b"u") == 7
    stream = counting.streams[0]
    assert (stream.is_open, stream.may_send) == (True, False)
    with pytest.raises(ValueError, match="granted"):
        stream.send(8)
    for number in range(8, 12):
        client.say(b"u", b"ack")
        assert counting.wakes.acquire(timeout=SECONDS)
        wait_for(lambda: stream.may_send)
        stream.send(number)
        assert client.answer(b"u") == number
    stream.end()
    assert client.answer(b"u") is None
    stream.end()
    client.say(b"u", b"ack")  # late
    client.ask(b"v", "echo", 3)
    assert client.answer(b"v") == 3
    assert client.is_silent()


def test_other_requests_of_the_connection_are_answered_meanwhile(
    served: tuple[Router, Counting, str], client: Client
) -> None:
    router, _, _ = served
    client.ask(b"u", "count", 1)
    assert client.answer(b"u") == 1
    for number in range(20):
        client.ask(b"v", "echo", number)
        assert client.answer(b"v") == number
    assert router.oldest_seconds == 0.0
    assert router.counters.refused == router.counters.dropped == 0


@pytest.mark.parametrize("word", [b"cancel", b"nonsense", b""])
def test_a_client_ends_it(served: tuple[Router, Counting, str], client: Client, word: bytes) -> None:
    _, counting, _ = served
    client.ask(b"u", "count", 1)
    assert client.answer(b"u") == 1
    client.say(b"u", word)
    assert counting.wakes.acquire(timeout=SECONDS)
    assert not counting.streams[0].is_open
    client.ask(b"v", "echo", 3)
    assert client.answer(b"v") == 3
    assert client.is_silent()


def test_a_client_that_goes_closes_it(served: tuple[Router, Counting, str]) -> None:
    router, counting, endpoint = served
    client = Client(endpoint)
    client.ask(b"u", "count", 1)
    assert client.answer(b"u") == 1
    client.close()
    wait_for(lambda: not counting.streams[0].is_open)
    counting.streams[0].end()
    wait_for(lambda: not router._streams)
    assert router.counters.dropped == 0


def test_the_same_uid_again_replaces_it(served: tuple[Router, Counting, str], client: Client) -> None:
    _, counting, _ = served
    client.ask(b"u", "count", -1)
    wait_for(lambda: counting.streams)
    client.ask(b"u", "count", 5)
    assert client.answer(b"u") == 5
    assert [stream.is_open for stream in counting.streams] == [False, True]


def test_too_many_are_refused(
    served: tuple[Router, Counting, str], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    router, _, _ = served
    monkeypatch.setattr(router_module, "STREAMS_MAX", 2)
    for uid in (b"a", b"b"):
        client.ask(uid, "count", 1)
        assert client.answer(uid) == 1
    wait_for(lambda: len(router._streams) == 2)
    client.ask(b"c", "count", 1)
    assert client.answer(b"c") is None
    assert router.counters.refused == 1


def test_a_stop_ends_all(served: tuple[Router, Counting, str], client: Client) -> None:
    router, _, _ = served
    client.ask(b"u", "count", 1)
    assert client.answer(b"u") == 1
    router.stop()
    assert client.answer(b"u") is None


def test_a_word_about_no_stream_is_an_unknown_operation_otherwise(
    served: tuple[Router, Counting, str], client: Client
) -> None:
    client.say(b"u", b"else")
    assert client.answer(b"u") is None
