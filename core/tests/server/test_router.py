"""Order, deferral, and answers whatever a handler does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import zmq

from lmcache_client.client import EngineClient
from lmcache_client.codec import PLAIN_READERS, FrameReader, OpenedFrame
from lmcache_client.engine_key import EngineKey, encode_tokens
from lmcache_client.errors import LMCacheError, ResourceError
from lmcache_client.operations import LOOKUP, Operation
from lmcache_core.contracts.clock import SystemClock
from lmcache_core.contracts.operation import DEFERRED, ELSEWHERE, Call, Handler, HandlerMode
from lmcache_core.kernels.choice import PURE
from lmcache_core.model.keys import HashChain
from lmcache_core.server.chunk_hashing import KeyReader, PromptHasher, open_chain
from lmcache_core.server.engine_socket import COPY_BELOW_BYTES, SENT_COPIED_BELOW_BYTES, EngineSocket
from lmcache_core.server.prompt_memory import PromptMemory
from lmcache_core.server.router import SMALL_BYTES, Router
from lmcache_core.server.threads import Pool

ECHO = Operation("echo", 100, (int,), int | None, -1)
BYTES = Operation("bytes", 101, (bytes,), int | None, -1)
TURNED = Operation("turned", 103, (bytes,), bytes, b"")
WAIT = Operation("wait", 102, (float,), int | None, -1)

Serve = Callable[..., EngineClient]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """`serve(handler, ...)` starts a router with these handlers and returns a client of it."""
    ends: list[Callable[[], None]] = []

    def start(
        *handlers: Handler, affine_threads: int = 2, readers: Mapping[Any, FrameReader] = PLAIN_READERS
    ) -> EngineClient:
        pooled, affine = Pool("pooled", 1), Pool("affine", affine_threads)
        router = Router(handlers, pooled, affine, EngineSocket(1 << 20, SystemClock()), SystemClock(), readers)
        endpoint = router.bind("127.0.0.1", 0)
        bodies = [pooled.body(0), *(affine.body(i) for i in range(affine_threads)), router.run]
        threads = [threading.Thread(target=body, daemon=True) for body in bodies]
        for thread in threads:
            thread.start()
        client = EngineClient(endpoint)

        def end() -> None:
            client.close()
            for stop in (router.stop, pooled.stop, affine.stop):
                stop()
            for thread in threads:
                thread.join(5)
                assert not thread.is_alive()
            router.close()

        ends.append(end)
        return client

    yield start
    for end in ends:
        end()


def handler(operation: Operation, mode: HandlerMode, function: Callable[..., Any]) -> Handler:
    return Handler(operation, function, mode)


def echo(call: Call, value: int) -> int:
    return value


@pytest.mark.parametrize("mode", HandlerMode)
def test_every_mode_answers(serve: Serve, mode: HandlerMode) -> None:
    client = serve(handler(ECHO, mode, lambda call, value: value))
    assert [client.call(ECHO, value) for value in (1, 2, 3)] == [1, 2, 3]


@pytest.mark.parametrize("mode", HandlerMode)
@pytest.mark.parametrize("result", [RuntimeError("no"), SystemExit(3), object(), ELSEWHERE, DEFERRED])
def test_what_a_handler_gets_wrong_is_answered_negatively(serve: Serve, mode: HandlerMode, result: object) -> None:
    def fail(call: Call, value: int) -> object:
        if isinstance(result, BaseException):
            raise result
        return result

    client = serve(handler(ECHO, mode, fail))
    if mode is HandlerMode.INLINE and result is ELSEWHERE:
        assert client.call(ECHO, 1) == -1, "it is given to the worker, and wrong there as well"
    assert client.call(ECHO, 1) == -1
    assert client.call(ECHO, 1) == -1


def test_ordered_requests_of_a_connection_keep_their_order(serve: Serve) -> None:
    """Large ones go to the worker and take their time; small ones behind them may not overtake."""
    seen: list[int] = []

    def slow(call: Call, data: bytes) -> int:
        time.sleep(0.005)
        seen.append(len(data))
        return len(data)

    client = serve(handler(BYTES, HandlerMode.ORDERED, slow))
    sizes = [SMALL_BYTES + 1, 1, 2, SMALL_BYTES + 2, 3, SMALL_BYTES + 3, 4, 5] * 5
    tickets = [client.send(BYTES, bytes(size)) for size in sizes]
    assert [client.receive(ticket) for ticket in tickets] == sizes
    assert seen == sizes


def test_small_ordered_requests_run_on_the_routers_thread_and_large_ones_do_not(serve: Serve) -> None:
    threads: dict[int, str] = {}

    def note(call: Call, data: bytes) -> int:
        threads[len(data)] = threading.current_thread().name
        assert call.may_wait == (len(data) > SMALL_BYTES)
        return len(data)

    inline = handler(
        ECHO, HandlerMode.INLINE, lambda call, value: threads.update({-1: threading.current_thread().name})
    )
    client = serve(handler(BYTES, HandlerMode.ORDERED, note), inline)
    for size in (1, SMALL_BYTES + 1):
        assert client.call(BYTES, bytes(size)) == size
    client.call(ECHO, 0)
    assert threads[1] == threads[-1] != threads[SMALL_BYTES + 1]


def test_a_known_prompt_is_answered_on_the_routers_thread_however_long_it_is(serve: Serve) -> None:
    chain, memory = open_chain(HashChain.BLAKE3, 16, "", PURE), PromptMemory(600, SystemClock())
    hasher = PromptHasher(chain, memory)
    waited: list[bool] = []

    def lookup(call: Call, key: EngineKey, tp_size: int) -> None:
        waited.append(call.may_wait)
        assert len(hasher.chunk_hashes(key.token_ids, key.end)) == key.end // 16

    client = serve(handler(LOOKUP, HandlerMode.ORDERED, lookup), readers={EngineKey: KeyReader(chain, memory)})
    tokens = [number * 7 for number in range(20_000)]
    for size, request_id in ((20_000, "a"), (20_000, "a"), (20_000, "b"), (10_000, "c")):
        client.lookup(EngineKey("m", 1, None, encode_tokens(tokens[:size]), 0, size, request_id))
    grown = [*tokens, *range(1000)]
    client.lookup(EngineKey("m", 1, None, encode_tokens(grown), 0, 21_000, "d"))
    client.lookup(EngineKey("m", 1, None, encode_tokens([*grown, *range(9000)]), 0, 30_000, "e"))
    assert waited == [True, False, False, False, False, True]


def test_a_flood_from_several_connections_is_answered_to_the_last_one(serve: Serve) -> None:
    """Inline and worker's answers mixed: no wake-up may be lost, or the last ones wait for ever."""
    first = serve(
        handler(ECHO, HandlerMode.INLINE, lambda call, value: value),
        handler(BYTES, HandlerMode.AFFINE, lambda call, data: len(data)),
    )
    others = [EngineClient(first.endpoint) for _ in range(3)]
    clients = [first, *others]
    for _ in range(20):
        echoes = [(client, client.send(ECHO, number)) for number in range(10) for client in clients]
        lengths = [(client, client.send(BYTES, bytes(number))) for number in range(10) for client in clients]
        assert [client.receive(ticket) for client, ticket in echoes] == [n for n in range(10) for _ in clients]
        assert [client.receive(ticket) for client, ticket in lengths] == [n for n in range(10) for _ in clients]
    for other in others:
        other.close()


@pytest.mark.parametrize("size", [COPY_BELOW_BYTES - 1, COPY_BELOW_BYTES, SENT_COPIED_BELOW_BYTES, 500_000])
def test_frames_of_every_size_arrive_whole(serve: Serve, size: int) -> None:
    client = serve(handler(TURNED, HandlerMode.ORDERED, lambda call, data: data[::-1]))
    data = bytes(number % 251 for number in range(size))
    assert client.call(TURNED, data) == data[::-1]


def test_elsewhere_calls_again_on_the_worker(serve: Serve) -> None:
    calls: list[bool] = []

    def either(call: Call, value: int) -> object:
        calls.append(call.may_wait)
        return value if call.may_wait else ELSEWHERE

    client = serve(handler(ECHO, HandlerMode.ORDERED, either))
    assert client.call(ECHO, 7) == 7
    assert calls == [False, True]


@pytest.mark.parametrize("mode", [HandlerMode.INLINE, HandlerMode.AFFINE, HandlerMode.ORDERED])
def test_a_deferred_call_is_answered_later_or_by_its_fallback(serve: Serve, mode: HandlerMode) -> None:
    late: list[bool] = []

    def wait(call: Call, seconds: float) -> object:
        call.defer(0.2, 2)

        def reply() -> None:
            late.append(call.reply(1))

        threading.Timer(seconds, reply).start()
        return DEFERRED

    client = serve(handler(WAIT, mode, wait))
    assert client.call(WAIT, 0.0) == 1
    assert client.call(WAIT, 0.5) == 2
    time.sleep(0.5)
    assert late == [True, False]
    assert client.call(WAIT, 0.0) == 1, "a connection that has waited is served like any other"


def test_a_single_request_is_answered_on_the_routers_thread(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another connection that has just asked is taken for one that waits."""
    monkeypatch.setattr("lmcache_core.server.router.CROWDED_SECONDS", 60.0)
    first = serve(handler(ECHO, HandlerMode.INLINE, lambda call, value: int(call.others_wait)))
    assert [first.call(ECHO, 0) for _ in range(3)] == [0, 0, 0]
    with EngineClient(first.endpoint) as second:
        assert [second.call(ECHO, 0) for _ in range(2)] == [1, 1]
    assert first.call(ECHO, 0) == 1
    monkeypatch.setattr("lmcache_core.server.router.CROWDED_SECONDS", 0.0)
    assert first.call(ECHO, 0) == 0


def test_one_connection_does_not_wait_for_another(serve: Serve) -> None:
    gate = threading.Event()
    first = serve(handler(BYTES, HandlerMode.ORDERED, lambda call, data: gate.wait(5) and len(data)))
    ticket = first.send(BYTES, bytes(SMALL_BYTES + 1))
    with EngineClient(first.endpoint) as second:
        gate_timer = threading.Timer(0.2, gate.set)
        gate_timer.start()
        assert second.call(BYTES, b"x", timeout_seconds=5) == 1
    assert first.receive(ticket) == SMALL_BYTES + 1


def test_too_many_waiting_are_refused_at_once(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmcache_core.server.router.QUEUE_MAX", 3)
    gate = threading.Event()
    client = serve(handler(ECHO, HandlerMode.AFFINE, lambda call, value: gate.wait(10) and value), affine_threads=1)
    tickets = [client.send(ECHO, value) for value in range(20)]
    refused = [client.receive(ticket) for ticket in tickets[10:]]
    assert refused == [-1] * 10
    gate.set()
    assert client.receive(tickets[0]) == 0


def test_a_port_that_is_taken_is_named_with_the_remedy() -> None:
    def router() -> Router:
        return Router([], Pool("p", 1), Pool("a", 1), EngineSocket(1 << 20, SystemClock()), SystemClock())

    first, second = router(), router()
    endpoint = first.bind("127.0.0.1", 0)
    port = int(endpoint.rsplit(":", 1)[1])
    with pytest.raises(ResourceError, match=f"port {port} on 127.0.0.1 cannot be opened.*another --port"):
        second.bind("127.0.0.1", port)
    first.close()
    second.close()


def test_an_unknown_operation_is_answered_and_the_client_says_so(serve: Serve) -> None:
    client = serve(handler(ECHO, HandlerMode.INLINE, lambda call, value: value))
    assert client.call(Operation("no_such_thing", None, (), None)) is None
    with pytest.raises(LMCacheError):
        client.call(ECHO, 1, 2)


def test_a_handler_that_fails_after_deferring_is_answered_once(serve: Serve) -> None:
    def fail(call: Call, value: int) -> object:
        call.defer(0.1, 5)
        raise RuntimeError("after defer")

    client = serve(handler(ECHO, HandlerMode.AFFINE, fail), handler(BYTES, HandlerMode.INLINE, lambda call, data: 3))
    assert client.call(ECHO, 1) == -1
    time.sleep(0.3)
    assert client.call(BYTES, b"") == 3


def test_answered_calls_leave_no_timers(serve: Serve) -> None:
    routers: list[Router] = []

    def wait(call: Call, seconds: float) -> object:
        call.defer(300, 2)
        routers.append(call._router)  # type: ignore[attr-defined]
        call.reply(1)
        return DEFERRED

    client = serve(handler(WAIT, HandlerMode.INLINE, wait))
    for _ in range(1000):
        assert client.call(WAIT, 0.0) == 1
    assert len(routers[0]._timers) < 300


@pytest.mark.parametrize("mode", HandlerMode)
def test_a_fallback_that_cannot_be_sent_is_refused_when_it_is_given(serve: Serve, mode: HandlerMode) -> None:
    def wait(call: Call, seconds: float) -> object:
        call.defer(seconds, object())
        return DEFERRED

    client = serve(handler(WAIT, mode, wait), handler(ECHO, HandlerMode.INLINE, lambda call, value: value))
    assert client.call(WAIT, 0.0) == -1
    time.sleep(0.1)
    assert client.call(ECHO, 1) == 1


def test_a_time_beyond_all_clocks_stops_no_client(serve: Serve) -> None:
    calls: list[Call] = []

    def wait(call: Call, seconds: float) -> object:
        call.defer(seconds, 2)
        calls.append(call)
        return DEFERRED

    client = serve(
        handler(WAIT, HandlerMode.INLINE, wait), handler(ECHO, HandlerMode.INLINE, lambda call, value: value)
    )
    ticket = client.send(WAIT, 1e300)
    assert [client.call(ECHO, value) for value in range(5)] == list(range(5))
    calls[0].reply(7)
    assert client.receive(ticket) == 7


def test_a_request_that_breaks_the_routers_thread_is_answered() -> None:
    class Reader:
        def __init__(self) -> None:
            self.opened = 0

        def open(self, frame: object) -> OpenedFrame:
            self.opened += 1
            raise RuntimeError("a fault of ours")

    reader = Reader()
    router = Router(
        [handler(BYTES, HandlerMode.ORDERED, lambda call, data: len(data)), handler(ECHO, HandlerMode.INLINE, echo)],
        Pool("pooled", 1), Pool("affine", 1), EngineSocket(1 << 20, SystemClock()), SystemClock(), {bytes: reader},
    )  # fmt: skip
    client = EngineClient(router.bind("127.0.0.1", 0))
    tickets = [client.send(BYTES, b"x"), client.send(ECHO, 5)]
    with pytest.raises(RuntimeError, match="a fault of ours"):
        router.run()
    assert client.receive(tickets[0]) == -1
    assert (reader.opened, router.counters.refused) == (1, 1)
    thread = threading.Thread(target=router.run, daemon=True)
    thread.start()
    assert client.receive(tickets[1]) == 5
    router.stop()
    thread.join(5)
    client.close()
    router.close()


def test_an_answer_is_sent_after_the_routers_thread_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Call] = []

    def wait(call: Call, value: int) -> object:
        calls.append(call)
        call.defer(300, 2)
        return DEFERRED

    router = Router(
        [handler(ECHO, HandlerMode.INLINE, wait)],
        Pool("p", 1),
        Pool("a", 1),
        EngineSocket(1 << 20, SystemClock()),
        SystemClock(),
    )
    client = EngineClient(router.bind("127.0.0.1", 0))
    tickets = [client.send(ECHO, value) for value in (1, 2)]
    while len(calls) < 2:
        router._poll([(router._port.socket, zmq.POLLIN)], 1000)

    def fail(envelope: object, result: object) -> None:
        raise RuntimeError("a fault of ours")

    calls[0].reply(10)
    calls[1].reply(20)
    with monkeypatch.context() as patch:
        patch.setattr(router._port, "send", fail)
        with pytest.raises(RuntimeError):
            router.run()
    thread = threading.Thread(target=router.run, daemon=True)
    thread.start()
    assert client.receive(tickets[1]) == 20
    router.stop()
    thread.join(5)
    client.close()
    router.close()


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0])
def test_a_time_that_never_comes_is_a_handlers_fault(serve: Serve, seconds: float) -> None:
    def wait(call: Call, value: int) -> object:
        call.defer(seconds, 2)
        return DEFERRED

    client = serve(handler(ECHO, HandlerMode.INLINE, wait))
    assert [client.call(ECHO, 1), client.call(ECHO, 1)] == [-1, -1]


def test_too_many_frames_are_answered_too(serve: Serve) -> None:
    client = serve(handler(ECHO, HandlerMode.INLINE, lambda call, value: value))
    client._socket.send_multipart([b"\x01", b"\x64", *[b"\x01"] * 50])
    assert client._socket.poll(2000)
    assert client._socket.recv_multipart() == [b"\x01", b"\x64", b"\xff"]
