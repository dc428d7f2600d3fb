"""A store that finds L1 full waits for space, and no other request waits for it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from core.tests.injected import injected
from core.tests.server import conftest
from core.tests.server.conftest import StartServer
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.app.server import Server
from lmcache_devkit.fake_engine import FakeEngine

L1_GB, SLOTS = 1 / 512, 170
"""2 MiB, and how many slots of 12 KiB that is."""
FOR_EVER_MS = 600_000.0
FULL, OTHER, THIRD = (list(range(first, first + 16 * 400)) for first in (0, 10_000, 20_000))


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


def occupy(engine: FakeEngine) -> None:
    """Reserve every slot and fill none."""
    reply = engine.worker.prepare_store(engine.key(FULL, "full", 0, 16 * SLOTS), engine.instance_id)
    assert isinstance(reply.context.slots, tuple)
    assert len(reply.context.slots) == SLOTS


def prepare(engine: FakeEngine, chunks: int) -> list[int]:
    """The chunks of another prompt that there is room for."""
    reply = engine.worker.prepare_store(engine.key(OTHER, "other", 0, 16 * chunks), engine.instance_id)
    assert isinstance(reply.context.chunk_indices, tuple)
    return list(reply.context.chunk_indices)


def is_waiting(server: Server, prepared: Future[list[int]]) -> bool:
    """Its request has come, it has what was free, and no answer yet."""
    return server.status()["requests"]["requests"] > 0 and not prepared.done()


def test_a_store_waits_until_eviction_has_made_room(start_server: StartServer, threads: ThreadPoolExecutor) -> None:
    """Nothing can be evicted when it comes; later there is, and only the waiting store has a use for that."""
    server = start_server(l1_size_gb=L1_GB, l1_allocation_wait_ms=FOR_EVER_MS, eviction_trigger_watermark=1.0)
    with FakeEngine(server.info.engine_endpoint) as first, FakeEngine(server.info.engine_endpoint) as second:
        occupy(first)
        prepared = threads.submit(prepare, second, 30)
        time.sleep(0.05)
        assert is_waiting(server, prepared)
        assert first.worker.commit_store(first.key(FULL, "full", 0, 16 * SLOTS), first.instance_id)
        assert prepared.result(10) == list(range(30)), "what the first one stored was evicted for it"


def test_a_store_that_has_waited_long_enough_stores_what_there_is_room_for(start_server: StartServer) -> None:
    server = start_server(l1_size_gb=L1_GB, l1_allocation_wait_ms=50)
    with FakeEngine(server.info.engine_endpoint) as first, FakeEngine(server.info.engine_endpoint) as second:
        occupy(first)
        assert prepare(second, 30) == []
        first.worker.unregister_engine_driven(first.instance_id)
        assert prepare(second, 400) == list(range(SLOTS))


def test_a_store_that_waits_makes_way_for_those_behind_it(
    start_server: StartServer, threads: ThreadPoolExecutor
) -> None:
    """All engines share one thread here."""
    server = start_server(l1_size_gb=L1_GB, l1_allocation_wait_ms=FOR_EVER_MS, max_workers=1)
    endpoint = server.info.engine_endpoint
    with FakeEngine(endpoint) as first, FakeEngine(endpoint) as second, FakeEngine(endpoint) as third:
        occupy(first)
        prepared = threads.submit(prepare, second, 30)
        time.sleep(0.05)
        assert is_waiting(server, prepared)
        behind = threads.submit(third.store, THIRD, "third", 0, 16 * 20)
        assert prepared.result(10) == [], "it stopped waiting when the third one came"
        assert not behind.done()
        assert third.lookup(FULL[:320], "lookup") == 0, "the router's thread does not wait"
        first.worker.unregister_engine_driven(first.instance_id)
        assert behind.result(10)
        assert third.lookup(THIRD[: 16 * 20], "again") == 20


def test_a_stop_ends_the_wait(start_server: StartServer, threads: ThreadPoolExecutor) -> None:
    server = start_server(l1_size_gb=L1_GB, l1_allocation_wait_ms=FOR_EVER_MS)
    with FakeEngine(server.info.engine_endpoint) as first, FakeEngine(server.info.engine_endpoint) as second:
        occupy(first)
        prepared = threads.submit(prepare, second, 30)
        time.sleep(0.05)
        assert is_waiting(server, prepared)
        server.stop(5.0)
        assert prepared.result(10) == []


def test_a_burst_that_l2_cannot_take_is_stored_in_part_and_always_answered(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four times L1, while the store controller holds everything that has been stored: no byte may leave L1."""
    monkeypatch.setattr(conftest, "load_plugins", lambda: load_plugins(["devkit"]))
    server = start_server(
        l1_size_gb=L1_GB,
        l1_allocation_wait_ms=10,
        l2_adapter=(injected(stall=1.0),),
        l2_store_max_backlog_gb=1,
    )
    stored = 0
    with FakeEngine(server.info.engine_endpoint, timeout_seconds=5) as engine:
        for number in range(4 * SLOTS // 34):
            tokens = [number, *OTHER[: 16 * 34 - 1]]
            key = engine.key(tokens, f"request {number}", 0, 16 * 34)
            indexes = engine.worker.prepare_store(key, engine.instance_id).context.chunk_indices
            assert isinstance(indexes, tuple)
            assert indexes == tuple(range(len(indexes))), "a prefix"
            assert not indexes or engine.worker.commit_store(key, engine.instance_id)
            stored += len(indexes)
        assert stored == SLOTS
        assert server.status()["l1"]["held"] == SLOTS
        assert server.status()["healthy"]
    server.stop(0.0)  # the stalled stores are not waited for
