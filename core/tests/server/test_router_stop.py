"""A server that is asked to stop answers its open requests before it closes its port: engines do not survive a lost answer."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import zmq

from core.tests.server.conftest import StartServer
from lmcache_client.operations import Operation
from lmcache_core.contracts.clock import SystemClock
from lmcache_core.contracts.operation import DEFERRED, ELSEWHERE, Call, Handler, HandlerMode
from lmcache_core.server.engine_socket import EngineSocket
from lmcache_core.server.router import Router
from lmcache_core.server.threads import LAST_CALL_SECONDS, Pool

ECHO = Operation("echo", 100, (int,), int | None, -1)
SLOW = Operation("slow", 101, (int,), int | None, -1)
WAIT = Operation("wait", 102, (int,), int | None, -1)
POOLED = Operation("pooled", 103, (int,), int | None, -1)
REQUESTS = 50


@dataclass(frozen=True)
class Served:
    router: Router
    endpoint: str
    entered: threading.Event
    """A slow request has begun."""
    go_on: threading.Event
    """Slow requests wait for this."""


Start = Callable[..., Served]
Connect = Callable[[str], "zmq.Socket[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """`start(port)` runs a router that echoes, at once, slowly on its connection's thread, or on request."""
    ends: list[Callable[[], None]] = []

    def start(port: int = 0) -> Served:
        entered, go_on = threading.Event(), threading.Event()

        def slow(call: Call, value: int) -> object:
            if not call.may_wait:
                return ELSEWHERE
            entered.set()
            go_on.wait(30)
            return value

        def wait(call: Call, value: int) -> object:
            call.defer(300.0, value)
            return DEFERRED

        pooled, affine = Pool("pooled", 1), Pool("affine", 1)
        handlers = [
            Handler(ECHO, lambda call, value: value, HandlerMode.ORDERED),
            Handler(SLOW, slow, HandlerMode.ORDERED),
            Handler(WAIT, wait, HandlerMode.ORDERED),
            Handler(POOLED, slow, HandlerMode.POOLED),
        ]
        router = Router(handlers, pooled, affine, EngineSocket(1 << 20, SystemClock()), SystemClock())
        endpoint = router.bind("127.0.0.1", port)
        threads = [threading.Thread(target=body, daemon=True) for body in (pooled.body(0), affine.body(0), router.run)]
        for thread in threads:
            thread.start()

        def end() -> None:
            go_on.set()
            router.stop()
            assert router.wait_closed(10)
            pooled.stop()
            affine.stop()
            for thread in threads:
                thread.join(10)
                assert not thread.is_alive()
            router.close()

        ends.append(end)
        return Served(router, endpoint, entered, go_on)

    yield start
    for end in ends:
        end()


@pytest.fixture
def connect() -> Iterator[Connect]:
    with zmq.Context() as context:
        sockets: list[zmq.Socket[bytes]] = []

        def connect(endpoint: str) -> zmq.Socket[bytes]:
            sockets.append(dealer := context.socket(zmq.DEALER))
            dealer.linger = 0
            dealer.connect(endpoint)
            return dealer

        yield connect
        for dealer in sockets:
            dealer.close()


def ask(dealer: zmq.Socket[bytes], number: int, operation: Operation) -> None:
    assert operation.wire_id is not None
    dealer.send_multipart([bytes([number]), bytes([operation.wire_id]), bytes([number])])


def answers(dealer: zmq.Socket[bytes], count: int, seconds: float = 10.0) -> list[tuple[int, int]]:
    """(request, result) of that number of answers, fewer when they do not come."""
    found: list[tuple[int, int]] = []
    while len(found) < count and dealer.poll(int(seconds * 1000)):
        uid, _, result = dealer.recv_multipart()
        found.append((uid[0], result[0]))
    return found


def test_what_has_arrived_is_answered(start: Start, connect: Connect) -> None:
    served = start()
    dealer = connect(served.endpoint)
    ask(dealer, 0, SLOW)
    assert served.entered.wait(10)
    for number in range(1, REQUESTS):
        ask(dealer, number, ECHO if number % 2 else SLOW)
    served.router.stop()
    assert not served.router.wait_closed(0.2), "closed with requests in hand"
    served.go_on.set()
    assert answers(dealer, REQUESTS) == [(number, number) for number in range(REQUESTS)]
    assert served.router.wait_closed(10)


@pytest.mark.parametrize("operation", [SLOW, POOLED])
def test_what_other_threads_have_in_hand_is_answered(start: Start, connect: Connect, operation: Operation) -> None:
    served = start()
    dealer = connect(served.endpoint)
    ask(dealer, 1, operation)
    assert served.entered.wait(10)
    served.router.stop()
    assert not served.router.wait_closed(0.2), "closed with a request in hand"
    served.go_on.set()
    assert answers(dealer, 1) == [(1, 1)]
    assert served.router.wait_closed(10)


def test_a_deferred_answer_does_not_wait_for_its_time(start: Start, connect: Connect) -> None:
    served = start()
    dealer = connect(served.endpoint)
    ask(dealer, 1, WAIT)
    ask(connect(served.endpoint), 2, WAIT)
    deadline = time.monotonic() + 10
    while served.router.counters.requests < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    served.router.stop()
    assert answers(dealer, 1) == [(1, 1)]
    assert served.router.wait_closed(10)


def test_a_handler_that_hangs_does_not_keep_the_port_open(start: Start, connect: Connect) -> None:
    served = start()
    ask(connect(served.endpoint), 1, SLOW)
    assert served.entered.wait(10)
    served.router.stop()
    assert served.router.wait_closed(LAST_CALL_SECONDS + 10)


def test_what_is_asked_later_is_answered_by_the_next_server(start: Start, connect: Connect) -> None:
    first = start()
    dealer = connect(first.endpoint)
    ask(dealer, 1, ECHO)
    assert answers(dealer, 1) == [(1, 1)]
    first.router.stop()
    assert first.router.wait_closed(10)
    time.sleep(0.2)  # for the client to see that its connection is closed
    ask(dealer, 2, ECHO)
    start(int(first.endpoint.rpartition(":")[2]))
    assert answers(dealer, 1) == [(2, 2)]


def takes_connections(endpoint: str) -> bool:
    host, port = endpoint.removeprefix("tcp://").split(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


def test_the_port_is_closed_before_anything_behind_it_stops(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server(l2_adapter=({"type": "memory"},))
    parts, endpoint = server._parts, server.info.engine_endpoint
    open_when_stopped: dict[str, bool] = {}

    def watch(name: str, target: Any, method: str) -> None:
        original = getattr(target, method)

        def stop(*arguments: Any) -> Any:
            open_when_stopped[name] = takes_connections(endpoint)
            return original(*arguments)

        monkeypatch.setattr(target, method, stop)

    watch("store", parts.tiers.store, "drain")
    watch("affine", parts.engine_port.affine, "stop")
    watch("adapter", parts.tiers.l2.clients[0], "close")
    assert server.stop(1.0)
    assert open_when_stopped == {"store": True, "affine": False, "adapter": False}
