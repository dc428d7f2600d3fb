"""Each message of an engine is counted as answered once, with how it was answered."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from lmcache_client.client import EngineClient
from lmcache_client.errors import ProtocolError
from lmcache_client.operations import Operation
from lmcache_core.contracts.clock import SystemClock
from lmcache_core.contracts.events import RequestAnswered
from lmcache_core.contracts.operation import DEFERRED, Call, Handler, HandlerMode
from lmcache_core.contracts.samples import BOUNDS_SECONDS
from lmcache_core.server.engine_socket import EngineSocket
from lmcache_core.server.router import Router
from lmcache_core.server.threads import Pool
from lmcache_devkit.event_recorder import EventRecorder

ECHO = Operation("echo", 100, (int,), int | None, -1)
SLOW = Operation("slow", 101, (int,), int | None, -1)
WAIT = Operation("wait", 102, (float,), int | None, -1)


class Site:
    """A router with handlers that fail on request."""

    def __init__(self) -> None:
        self.events, self.gate = EventRecorder(), threading.Event()
        self.pooled, self.affine = Pool("pooled", 1), Pool("affine", 1)
        handlers = [
            Handler(ECHO, self.echo, HandlerMode.INLINE),
            Handler(SLOW, self.slow, HandlerMode.AFFINE),
            Handler(WAIT, self.wait, HandlerMode.INLINE),
        ]
        self.router = Router(
            handlers, self.pooled, self.affine, EngineSocket(1 << 20, SystemClock()), SystemClock(), events=self.events
        )
        self.client = EngineClient(self.router.bind("127.0.0.1", 0))

    def echo(self, call: Call, value: int) -> int:
        if value == 1:
            raise ProtocolError("no")
        if value == 2:
            raise RuntimeError("broken")
        return value

    def slow(self, call: Call, value: int) -> int:
        self.gate.wait(10)
        return value

    def wait(self, call: Call, seconds: float) -> object:
        call.defer(abs(seconds), 5)
        if seconds < 0:
            call.reply(6)
        return DEFERRED


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    bodies = (site.pooled.body(0), site.affine.body(0), site.router.run)
    threads = [threading.Thread(target=body, daemon=True) for body in bodies]
    for thread in threads:
        thread.start()
    yield site
    site.gate.set()
    site.client.close()
    for stop in (site.router.stop, site.pooled.stop, site.affine.stop):
        stop()
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
    site.router.close()


def counted(site: Site) -> dict[tuple[str, str], int]:
    return {what: sum(histogram.counts) for what, histogram in site.router.answered().items()}


def test_outcomes_are_distinguished(site: Site) -> None:
    for value in (0, 1, 2, 3):
        site.client.call(ECHO, value)
    site.client.call(Operation("no_such_thing", None, (), None))
    assert counted(site) == {
        ("echo", "ok"): 2,
        ("echo", "refused"): 1,
        ("echo", "error"): 1,
        ("unknown", "refused"): 1,
    }
    answered = [(event.operation, event.outcome) for event in site.events.of(RequestAnswered)]
    assert answered == [("echo", "ok"), ("echo", "refused"), ("echo", "error"), ("echo", "ok")]


def test_a_deferred_call_counts_when_it_is_answered(site: Site) -> None:
    assert site.client.call(WAIT, 0.05) == 5
    histogram = site.router.answered()["wait", "ok"]
    (event,) = site.events.of(RequestAnswered)
    assert histogram.min == histogram.max == histogram.sum == event.seconds >= 0.04
    (bucket,) = [index for index, count in enumerate(histogram.counts) if count]
    assert ([0.0, *BOUNDS_SECONDS])[bucket] < event.seconds <= ([*BOUNDS_SECONDS, float("inf")])[bucket]


def test_a_call_that_is_replied_to_before_its_time_counts_once(site: Site) -> None:
    assert site.client.call(WAIT, -0.05) == 6
    time.sleep(0.1)
    assert site.client.call(ECHO, 3) == 3
    assert counted(site) == {("wait", "ok"): 1, ("echo", "ok"): 1}


def test_the_oldest_request_on_another_thread_has_an_age(site: Site) -> None:
    assert site.router.oldest_seconds == 0
    ticket: Any = site.client.send(SLOW, 7)
    deadline = time.monotonic() + 10
    while site.router.oldest_seconds == 0 and time.monotonic() < deadline:
        time.sleep(0.005)
    first = site.router.oldest_seconds
    time.sleep(0.02)
    assert site.router.oldest_seconds > first > 0
    site.gate.set()
    assert site.client.receive(ticket) == 7
    assert site.router.oldest_seconds == 0
    assert counted(site) == {("slow", "ok"): 1}


def test_requests_that_find_no_room_are_refused(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmcache_core.server.router.QUEUE_MAX", 2)
    tickets = [site.client.send(SLOW, value) for value in range(10)]
    deadline = time.monotonic() + 10
    while counted(site).get(("slow", "refused"), 0) < 5 and time.monotonic() < deadline:
        time.sleep(0.005)
    site.gate.set()
    answers = [site.client.receive(ticket) for ticket in tickets]
    by_outcome = counted(site)
    assert by_outcome["slow", "refused"] == answers.count(-1) >= 5
    assert sum(by_outcome.values()) == 10
