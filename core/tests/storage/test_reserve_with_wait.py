"""A store that finds no room waits for it, up to a bound, and then stores a prefix of what was asked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from lmcache_core.l1.arena import anonymous_arena
from lmcache_core.l1.cache import L1Cache
from lmcache_core.l1.index import SpaceRecord
from lmcache_core.l1.leases import Lease, Owner, OwnerKind
from lmcache_core.model.keys import HashChain, KeySpace
from lmcache_core.storage.manager import reserve_with_wait
from lmcache_devkit.l1_audit import audit

PAYLOAD, SLOTS = 4096, 32
WORKER, OTHER = Owner(OwnerKind.WORKER, 1), Owner(OwnerKind.WORKER, 2)
LONG = 60.0


@pytest.fixture
def cache() -> Iterator[L1Cache]:
    arena = anonymous_arena(2 * PAYLOAD * SLOTS)
    cache = L1Cache(arena, 4096)
    yield cache
    audit(cache)
    assert cache.contents.state_counts().is_balanced
    arena.close()


@pytest.fixture
def record(cache: L1Cache) -> SpaceRecord:
    return cache.intern(KeySpace("m", 1, 0, "", 16, HashChain.BLAKE3, bytes(16)), PAYLOAD)


def hashes(*numbers: int) -> list[bytes]:
    return [number.to_bytes(32, "big") for number in numbers]


def fill(cache: L1Cache, record: SpaceRecord, first: int = 1000, count: int = SLOTS) -> Lease:
    """A lease on every slot."""
    lease, indexes = cache.reserve(OTHER, record, hashes(*range(first, first + count)), None)
    assert len(indexes) == count
    return lease


class Waiting:
    """A store of `chunks` chunks on a thread of its own, which has found how much space there is and waits for more."""

    def __init__(
        self,
        cache: L1Cache,
        record: SpaceRecord,
        chunks: int,
        seconds: float,
        may_wait: Callable[[], bool],
        first: int = 0,
    ) -> None:
        wanted = hashes(*range(first, first + chunks))
        self.lease, indexes = cache.reserve(WORKER, record, wanted, None)
        self.indexes: list[int] = []
        self._thread = threading.Thread(
            target=lambda: self.indexes.extend(
                reserve_with_wait(cache, self.lease, record, wanted, indexes, seconds, may_wait)
            )
        )
        self._thread.start()

    def join(self) -> list[int]:
        self._thread.join(10)
        assert not self._thread.is_alive(), "it should not wait any more"
        return self.indexes


def always() -> bool:
    return True


def test_a_store_that_has_room_does_not_wait(cache: L1Cache, record: SpaceRecord) -> None:
    def may_wait() -> bool:
        raise AssertionError("it should not come to that")

    lease, indexes = cache.reserve(WORKER, record, hashes(1, 2), None)
    assert reserve_with_wait(cache, lease, record, hashes(1, 2), indexes, LONG, may_wait) == [0, 1]


def test_what_is_freed_meanwhile_is_used(cache: L1Cache, record: SpaceRecord) -> None:
    full = fill(cache, record)
    store = Waiting(cache, record, 10, LONG, always)
    cache.discard(full, full.slots[:4])
    cache.discard(full, full.slots[:6])
    assert store.join() == list(range(10))
    assert len(store.lease.slots) == 10
    assert cache.publish(store.lease, list(store.lease.slots))
    cache.leases.end(full)


def test_when_the_time_is_over_a_prefix_is_stored(cache: L1Cache, record: SpaceRecord) -> None:
    full = fill(cache, record)
    cache.discard(full, full.slots[:2])
    store = Waiting(cache, record, 10, 0.05, always)
    assert store.join() == [0, 1]
    assert len(store.lease.slots) == 2
    cache.leases.end_all(WORKER)
    cache.leases.end(full)


def test_what_came_too_late_for_all_is_taken_at_the_end(cache: L1Cache, record: SpaceRecord) -> None:
    full = fill(cache, record)
    freed = threading.Event()

    def may_wait() -> bool:
        if not freed.is_set():
            cache.discard(full, full.slots[:3])
            freed.set()
            return True
        return False

    store = Waiting(cache, record, 10, LONG, may_wait)
    assert store.join() == [0, 1, 2]
    cache.leases.end_all(WORKER)
    cache.leases.end(full)


def test_others_in_the_queue_end_the_wait(cache: L1Cache, record: SpaceRecord) -> None:
    full = fill(cache, record)
    may_wait = iter([True, True, False])
    store = Waiting(cache, record, 10, LONG, lambda: next(may_wait))
    assert store.join() == []
    cache.leases.end_all(WORKER)
    cache.leases.end(full)


def test_a_stop_ends_all_waits_and_prevents_new_ones(cache: L1Cache, record: SpaceRecord) -> None:
    full = fill(cache, record)
    stores = [Waiting(cache, record, 10, LONG, always) for _ in range(3)]
    cache.cancel_waits()
    assert [store.join() for store in stores] == [[], [], []]
    assert Waiting(cache, record, 10, LONG, always).join() == []
    cache.leases.end_all(WORKER)
    cache.leases.end(full)


def test_a_worker_that_leaves_ends_its_wait(cache: L1Cache, record: SpaceRecord) -> None:
    full = fill(cache, record)
    store = Waiting(cache, record, 10, LONG, always)
    cache.leases.end_all(WORKER)
    cache.leases.end(full)
    assert store.join() == []
    assert cache.contents.state_counts().held == 0, "it must not get anything after its end"


def test_chunks_that_another_worker_stores_meanwhile_are_not_waited_for(cache: L1Cache, record: SpaceRecord) -> None:
    full = fill(cache, record, count=SLOTS - 2)
    store = Waiting(cache, record, 10, LONG, always)
    assert len(store.lease.slots) == 2
    cache.discard(full, full.slots[:8])
    assert store.join() == list(range(10))
    again, indexes = cache.reserve(OTHER, record, hashes(*range(10)), None)
    assert reserve_with_wait(cache, again, record, hashes(*range(10)), indexes, LONG, always) == []
    cache.leases.end_all(WORKER)
    cache.leases.end(full)
    cache.leases.end(again)


def test_what_was_there_and_leaves_meanwhile_does_not_change_the_order(cache: L1Cache, record: SpaceRecord) -> None:
    """Chunk 0 is in L1 when the store begins, and is evicted to make room for it."""
    first, _ = cache.reserve(OTHER, record, hashes(0), None)
    (slot,) = first.slots
    cache.publish(first, [slot])
    cache.take_access_log()
    full = fill(cache, record, count=SLOTS - 1)
    cache.discard(full, full.slots[:1])
    store = Waiting(cache, record, 3, LONG, always)
    assert cache.evict([slot])[0] == 1
    assert store.join() == [1, 2]
    cache.leases.end_all(WORKER)
    cache.leases.end(full)


def test_eviction_is_asked_once_for_what_never_comes(cache: L1Cache, record: SpaceRecord) -> None:
    full = fill(cache, record)
    cache.take_access_log()
    store = Waiting(cache, record, 10, 0.03, always)
    assert store.join() == []
    assert cache.take_demand() == {2 * PAYLOAD: 10 * 2 * PAYLOAD}
    cache.leases.end_all(WORKER)
    cache.leases.end(full)


def test_many_stores_that_wait_share_what_comes_and_none_waits_for_ever(cache: L1Cache, record: SpaceRecord) -> None:
    full = fill(cache, record)
    stores = [Waiting(cache, record, 10, 1.0, always, first=10 * number) for number in range(4)]
    while full.slots:
        cache.discard(full, full.slots[:3])
    got = [store.join() for store in stores]
    assert sorted(map(len, got)) == [2, 10, 10, 10]
    for store, indexes in zip(stores, got, strict=True):
        assert indexes == list(range(len(indexes))), "a prefix"
        assert len(store.lease.slots) == len(indexes)
    cache.leases.end_all(WORKER)
    cache.leases.end(full)
