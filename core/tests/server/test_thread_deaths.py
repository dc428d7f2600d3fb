"""Whichever thread of the server dies: health is red, the thread comes back, the next request succeeds, nothing is left."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from core.tests.server.conftest import StartServer
from core.tests.server.test_controller_faults import restarts, trip, wait_for
from lmcache_core.app.server import Server
from lmcache_core.contracts.events import LeasesExpired
from lmcache_core.controllers import supervisor
from lmcache_devkit.fake_engine import FakeEngine
from lmcache_policies.l2_eviction.listing import L2Listing

TOKENS = list(range(320))
CHUNKS = 20
RED_SECONDS = 0.4
"""How long a dead thread stays dead here, so that it can be seen."""

Trip = Callable[[Server, pytest.MonkeyPatch], object]


def at(find: Callable[[Any], Any], method: str) -> Trip:
    """The next call of this method of a part raises."""
    return lambda server, monkeypatch: trip(find(server._parts), method, monkeypatch)


def task(pool: str) -> Trip:
    """A task of this pool raises."""

    def fail() -> None:
        raise RuntimeError("injected")

    def submit(server: Server, _: pytest.MonkeyPatch) -> None:
        part = getattr(server._parts.engine_port, pool)
        assert part.submit(b"connection", fail, 8)

    return submit


def check(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    reaper = server._parts.engine_port.reaper
    raised = list[None]()

    def once() -> None:
        if not raised:
            raised.append(None)
            raise RuntimeError("injected")

    monkeypatch.setattr(reaper, "_checks", (once, *reaper._checks))


DEATHS: dict[str, Trip] = {
    "events-log": at(lambda parts: parts.common.bus.queue_of("log"), "_deliver"),
    "l2-completions": at(lambda parts: parts.tiers.l2.clients[0], "_complete"),
    "store": at(lambda parts: parts.tiers.store, "_enqueue"),
    "prefetch": at(lambda parts: parts.tiers.prefetch, "_handle"),
    "eviction": at(lambda parts: parts.tiers.eviction, "cycle"),
    "l1-preallocation": at(lambda parts: parts.preallocation, "_fill"),
    "l2-eviction-memory": at(lambda parts: parts.tiers.l2.evictions[0].eviction, "_go_on"),
    "conditions": at(lambda parts: parts.common.conditions, "check"),
    "reaper": check,
    "pooled-0": task("pooled"),
    "affine-0": task("affine"),
    "router": at(lambda parts: parts.engine_port.router, "_receive"),
}
ELSEWHERE = {"l2-listing-memory", "handshakes"}
"""Have tests of their own: one ends by itself, the other works for new connections alone (test_handshakes)."""


@contextmanager
def observed(server: Server) -> Iterator[set[str]]:
    """What conditions the server has meanwhile."""
    complaints, done = set[str](), threading.Event()

    def observe() -> None:
        while not done.wait(0.01):
            complaints.update(each.condition.sentence for each in server.conditions())

    observer = threading.Thread(target=observe, daemon=True)
    observer.start()
    yield complaints
    done.set()
    observer.join()


def start(start_server: StartServer, **settings: object) -> Server:
    eviction = {"eviction_policy": "LRU"}
    return start_server(l2_adapter=({"type": "memory", "eviction": eviction},), **settings)


def work(engine: FakeEngine, server: Server, first_token: int) -> None:
    """Store, let it reach L2, forget it in L1, and look it up there; wake the threads that have no part in that."""
    tokens = [first_token, *TOKENS]
    assert engine.store(tokens)
    wait_for(lambda: not server.status()["store"]["backlog_bytes"])
    engine.scheduler.clear()
    engine.lookup(tokens, f"r{first_token}")
    server._parts.common.bus.publish(LeasesExpired(0, 0))
    server._parts.tiers.eviction.wake()
    server._parts.preallocation._requested.set()
    engine.end(f"r{first_token}")


@pytest.mark.parametrize("name", DEATHS)
def test_a_thread_that_dies_is_seen_and_comes_back(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(supervisor, "BACKOFF_FIRST_SECONDS", RED_SECONDS)
    server = start(start_server)
    with FakeEngine(server.info.engine_endpoint) as engine:
        work(engine, server, 1000)
        with observed(server) as complaints:
            DEATHS[name](server, monkeypatch)
            work(engine, server, 2000)
            wait_for(lambda: restarts(server, name) == 1 and server.status()["state"] != "unhealthy")
        assert any(
            complaint.startswith(f"thread {name}: it is down: RuntimeError: injected") for complaint in complaints
        )

        tokens = [7, *TOKENS]
        assert engine.store(tokens)
        wait_for(lambda: not server.status()["store"]["backlog_bytes"])
        engine.scheduler.clear()
        assert engine.lookup(tokens, "next") == CHUNKS
        assert engine.retrieve(tokens, "next", 0, CHUNKS * 16) == [engine.content(tokens, c) for c in range(CHUNKS)]
        engine.end("next")
        wait_for(lambda: server.status()["l1"]["held"] == 0)
        status = server.status()
        assert (status["l1"]["quarantined"], status["l1"]["leases"], status["lookups_open"]) == (0, 0, 0)
        assert status["l1"]["state_counts_add_up"]
        assert status["l2"][0]["jobs_in_flight"] == 0
        account = status["store"]["adapters"]["memory"]
        assert account["admitted"] == account["stored"] + account["failed"] + account["dropped"]
        others = {other: thread["restarts"] for other, thread in status["threads"].items() if other != name}
        assert not any(others.values()), others


def test_every_thread_of_a_server_is_in_the_table(start_server: StartServer) -> None:
    names = set(start(start_server).status()["threads"])
    one_for_all = {name for name in names if name.startswith("events-") and name not in DEATHS}
    assert names - one_for_all == {*DEATHS, *ELSEWHERE}, "a thread that this test does not kill yet: add it above"


def test_a_listing_that_dies_goes_on_where_it_was(start_server: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    original, tripped = L2Listing._list_page, list[str]()

    def once(listing: L2Listing) -> bool:
        if not tripped:
            tripped.append("")
            raise RuntimeError("injected")
        return original(listing)

    monkeypatch.setattr(L2Listing, "_list_page", once)
    server = start(start_server)
    wait_for(lambda: server.status()["l2"][0]["eviction"]["listing"] == "done")
    assert restarts(server, "l2-listing-memory") == 1
    wait_for(lambda: server.status()["state"] != "unhealthy")
