"""What has to wait does so on threads, and delays no answer beside it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection
from typing import Final

import msgspec
import pytest

from lmcache_coordinator.command import LIMITS, _app
from lmcache_coordinator.coordinator import Coordinator
from lmcache_coordinator.registry import Registration
from lmcache_coordinator.routes import requests
from lmcache_coordinator.routes.members import PAGES_AT_ONCE
from lmcache_coordinator.settings import read_settings
from lmcache_coordinator.states.sqlite import SqliteState
from lmcache_coordinator.views import Views
from lmcache_core import SystemClock
from lmcache_core.builtin.lru import LeastRecentlyUsed
from lmcache_fleet.messages import JournalPage, KeysOf, Lookup, Page, encode
from lmcache_fleet.state import CoordinatorState, Reading
from lmcache_fleet.view import CoordinatorView
from lmcache_http.plugin_calls import PluginCalls
from lmcache_http.server import CALL_THREADS, HttpServer
from plugins.coordinator.tests.test_routes import SPACE, TOKENS, stored

SECONDS: Final = 60
MEMBERS: Final = PAGES_AT_ONCE + 2


class Waiting(CoordinatorView):
    """Takes no page until it may."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.may_go = threading.Event()

    def take(self, page: Page, skip: int) -> None:
        self.entered.release()
        assert self.may_go.wait(SECONDS)

    def forget(self, instance: str) -> None:
        return


class SilentState(SqliteState):
    """Answers no reading until it may."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.entered = threading.Semaphore(0)
        self.may_go = threading.Event()
        self.may_go.set()

    def read(self, prefix: str) -> Reading:
        self.entered.release()
        assert self.may_go.wait(SECONDS)
        return super().read(prefix)


@contextmanager
def running(views: Views, state: CoordinatorState | None = None) -> Iterator[tuple[Coordinator, Callable[..., int]]]:
    """A coordinator with members m0, m1 and so on, and a function that sends and returns the status."""
    state = state or SqliteState(":memory:")
    coordinator = Coordinator(read_settings(()), state, LeastRecentlyUsed, SystemClock(), views)
    for member in range(MEMBERS):
        coordinator.registry.register(f"m{member}", Registration(incarnation="1"), None, False)
    calls = PluginCalls()
    server = HttpServer("127.0.0.1", 0, None, lambda: _app(coordinator, None, calls), name="test", limits=LIMITS)
    server.start()

    def ask(path: str, body: bytes = b"", method: str = "POST") -> int:
        with closing(HTTPConnection(server.endpoint.removeprefix("http://"), timeout=SECONDS)) as connection:
            connection.request(method, path, body)
            answer = connection.getresponse()
            answer.read()
            return answer.status

    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        with suppress(ConnectionRefusedError):
            ask("/healthz", method="GET")
            break
        time.sleep(0.02)
    try:
        yield coordinator, ask
    finally:
        server.stop()
        calls.close()


def page(member: int) -> bytes:
    about = {"instance": f"m{member}", "incarnation": "1", "source": "l1", "spaces": (SPACE.tail,)}
    return encode(JournalPage(**about, runs=(stored(0, 2),), first=0))  # type: ignore[arg-type]


def test_pages_that_wait_for_a_view_delay_no_answer() -> None:
    view = Waiting()
    with running(Views({"waiting": view})) as (coordinator, ask), ThreadPoolExecutor(MEMBERS) as pool:
        pages = [pool.submit(ask, "/fleet/journal", page(member)) for member in range(MEMBERS - 1)]
        for _ in range(PAGES_AT_ONCE):
            assert view.entered.acquire(timeout=SECONDS)
        assert ask("/healthz", method="GET") == 200
        assert ask("/fleet/lookup", encode(Lookup((KeysOf(SPACE.tail, bytes(32)),)))) == 200
        assert ask("/query", msgspec.json.encode({"model": "llama", "token_ids": TOKENS})) == 200
        assert ask(f"/fleet/heartbeat/m{MEMBERS - 1}") == 200
        assert not view.entered.acquire(blocking=False), "no more pages than that are in work"
        assert not any(each.done() for each in pages)
        beat = pool.submit(ask, "/fleet/heartbeat/m0")  # waits for the member's page, where that is in work
        view.may_go.set()
        assert [each.result(SECONDS) for each in (*pages, beat)] == [200] * MEMBERS
        assert sum(coordinator.placements.counts().values()) == 2 * (MEMBERS - 1)


def test_a_lock_that_a_thread_has_delays_no_other_answer() -> None:
    """A listing of a large backend that ends has that of the journals for long."""
    with running(Views({})) as (coordinator, ask), ThreadPoolExecutor(3) as pool:
        with coordinator.journals._lock:
            waiting = [
                pool.submit(ask, "/fleet/journal", page(0)),
                pool.submit(ask, "/fleet/heartbeat/m1"),
                pool.submit(ask, "/query", msgspec.json.encode({"model": "llama", "token_ids": TOKENS})),
            ]
            assert ask("/fleet/lookup", encode(Lookup((KeysOf(SPACE.tail, bytes(32)),)))) == 200
            assert not any(each.done() for each in waiting)
        assert [each.result(SECONDS) for each in waiting] == [200] * 3


def test_registrations_and_questions_that_wait_for_the_state_delay_no_page_and_are_refused_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requests, "CALL_SECONDS", 1.0)
    state, calls = SilentState(":memory:"), 3 * CALL_THREADS
    with running(Views({}), state) as (coordinator, ask), ThreadPoolExecutor(calls) as pool:
        state.may_go.clear()
        said = [msgspec.json.encode({"instance_id": f"new{number}", "secret": True}) for number in range(calls // 2)]
        waiting = [pool.submit(ask, "/instances", each) for each in said]
        waiting += [pool.submit(ask, "/l2/status", b"", "GET") for _ in said]
        assert state.entered.acquire(timeout=SECONDS)
        with coordinator.journals._lock:  # so that it goes to a thread
            later = pool.submit(ask, "/fleet/journal", page(0))
        assert later.result(SECONDS) == 200
        wait(waiting, SECONDS, FIRST_COMPLETED)
        refused = [each for each in waiting if each.done()]
        assert refused
        assert {each.result() for each in refused} == {503}
        assert sum(not each.done() for each in waiting) >= requests.STATE_CALLS
        state.may_go.set()
        assert {each.result(SECONDS) for each in waiting} == {200, 503}
