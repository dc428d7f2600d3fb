"""Usage is exact, and capacity is kept."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.completion import JobId
from lmcache_core.contracts.l1_memory import BorrowedBuffer
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.results import Outcome
from lmcache_devkit.borrowed_memory import BorrowedMemory
from lmcache_devkit.l2.fixtures import L2Fixtures
from lmcache_devkit.l2.rig import OBJECT_BYTES, Rig
from lmcache_devkit.offer_under_test import OpenableOffer

DONE, MISSING, REJECTED = Outcome.DONE, Outcome.MISSING, Outcome.REJECTED
LEAK_OBJECTS, LEAK_ROUNDS, LEAK_PAYLOAD_BYTES = 25, 20, 2_000
LEAK_BYTES_MAX = 300
THREADS = 8
ROUNDS = 20


class Accounting(L2Fixtures):
    def test_usage_is_exact(self, rig: Rig) -> None:
        rig.require(Capability.USAGE | Capability.DELETE)
        keys = rig.put(4)
        assert rig.stored() == (4, 4 * OBJECT_BYTES)
        rig.driver.delete(*keys[:3])
        rig.driver.delete(*keys[:3])
        assert rig.stored() == (1, OBJECT_BYTES)
        rig.driver.delete(keys[3])
        assert rig.stored() == (0, 0)

    def test_usage_counts_objects_of_every_size(self, rig: Rig) -> None:
        rig.require(Capability.USAGE)
        sizes = (1, 100, 4_096, 100_001)
        for number, payload_bytes in enumerate(sizes):
            rig.put(1, first=number, payload_bytes=payload_bytes)
        assert rig.stored() == (len(sizes), sum(sizes) + len(sizes) * (OBJECT_BYTES - 10_000))

    def test_one_key_that_many_threads_store_is_one_object(self, rig: Rig) -> None:
        rig.require_stores()
        keys = rig.keys(10)
        for key in keys:
            items = [rig.whole(key) for _ in range(THREADS)]
            jobs: list[JobId] = []
            barrier = threading.Barrier(THREADS)

            def store(item: Any, jobs: list[JobId] = jobs, barrier: threading.Barrier = barrier) -> None:
                barrier.wait(self.wait_seconds)
                jobs.append(rig.driver.submit_store([item]))

            threads = [threading.Thread(target=store, args=(item,)) for item in items]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert [rig.driver.finish(job) for job in jobs] == [(DONE,)] * THREADS
        rig.assert_whole(*keys)
        if Capability.USAGE in rig.capabilities:
            assert rig.stored() == (10, 10 * OBJECT_BYTES)

    def test_usage_is_exact_after_storing_and_deleting_at_once(self, rig: Rig) -> None:
        rig.require(Capability.USAGE | Capability.DELETE)
        keys = rig.keys(12)
        items = [rig.whole(key) for key in keys]
        jobs = []
        for _ in range(10):
            jobs.append(rig.driver.submit_store(items))
            jobs.append(rig.driver.adapter.submit_delete(keys[::2]))
        for job in jobs:
            rig.driver.finish(job)
        there = rig.driver.has(*keys).count(DONE)
        assert rig.stored() == (there, there * OBJECT_BYTES)

    def test_what_was_rejected_counts_no_more(self, rig: Rig) -> None:
        rig.require(Capability.USAGE | Capability.DELETE)
        (key,) = rig.put(1)
        rig.driver.adapter.reject(key, Outcome.DAMAGED)
        rig.store_anew(key)
        assert rig.stored() == (1, OBJECT_BYTES)

    def test_memory_does_not_grow_with_stores(self, rig: Rig) -> None:
        """The same few objects over and over: what is kept for each object there is may stay, what is kept for each store
        may not.  Memory of Python alone is seen."""
        rig.require_stores()
        items = [rig.whole(key, LEAK_PAYLOAD_BYTES) for key in rig.keys(LEAK_OBJECTS)]
        tracemalloc.start()
        try:
            self._store_often(rig, items)
            before = _traced_bytes()
            self._store_often(rig, items)
            each = (_traced_bytes() - before) / (LEAK_ROUNDS * LEAK_OBJECTS)
        finally:
            tracemalloc.stop()
        assert each <= LEAK_BYTES_MAX, f"{each:.0f} bytes more after each store, of the same objects over and over"

    def _store_often(self, rig: Rig, items: Sequence[tuple[ObjectKey, BorrowedBuffer]]) -> None:
        keys = [key for key, _ in items]
        for _ in range(LEAK_ROUNDS):
            assert rig.driver.store(*items) == (DONE,) * len(items)
            if Capability.DELETE in rig.capabilities:
                assert rig.driver.delete(*keys) == (DONE,) * len(items)
            rig.driver.seen.clear()

    # A backend of `small_bytes`.

    @pytest.fixture
    def small_rig(
        self, small_settings: Mapping[str, Any] | None, under_test: OpenableOffer, memory: BorrowedMemory
    ) -> Iterator[Rig]:
        if small_settings is None:
            pytest.skip("the fixture small_settings gives no backend of small_bytes")
        rig = Rig(OpenableOffer(under_test.offer, small_settings), memory, self.wait_seconds)
        yield rig
        rig.finish()

    def test_beyond_its_capacity_it_rejects_and_takes_again_after_a_delete(self, small_rig: Rig) -> None:
        small_rig.require(Capability.DELETE)
        room = self.small_bytes // OBJECT_BYTES
        keys = small_rig.put(room)
        late = small_rig.key(room)
        assert small_rig.driver.store(small_rig.whole(late)) == (REJECTED,)
        assert small_rig.driver.has(late) == (MISSING,)
        small_rig.assert_whole(*keys)
        small_rig.driver.delete(keys[0])
        assert small_rig.driver.store(small_rig.whole(late)) == (DONE,)
        if Capability.USAGE in small_rig.capabilities:
            assert small_rig.driver.adapter.usage() == (room * OBJECT_BYTES, self.small_bytes, room)

    def test_many_writers_never_exceed_the_capacity(self, small_rig: Rig) -> None:
        small_rig.require_stores()
        room = self.small_bytes // OBJECT_BYTES
        jobs: list[JobId] = []
        batches = [[small_rig.whole(key) for key in small_rig.keys(10, 10 * number)] for number in range(THREADS)]
        seen: list[int] = []

        def store(number: int) -> None:
            for item in batches[number]:
                jobs.append(small_rig.driver.submit_store([item]))
                usage = small_rig.driver.adapter.usage()
                seen.append(usage.used_bytes if usage else 0)

        threads = [threading.Thread(target=store, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        outcomes = [small_rig.driver.finish(job)[0] for job in jobs]
        assert set(outcomes) <= {DONE, REJECTED}
        keys = small_rig.keys(10 * THREADS)
        there = small_rig.driver.has(*keys).count(DONE)
        assert 0 < there <= room, f"{there} objects are there, and there is room for {room}"
        assert max(seen) <= self.small_bytes
        if Capability.USAGE in small_rig.capabilities:
            assert small_rig.stored() == (there, there * OBJECT_BYTES)

    def test_of_many_writers_for_the_last_place_no_more_get_it(self, small_rig: Rig) -> None:
        small_rig.require(Capability.DELETE)
        room = self.small_bytes // OBJECT_BYTES
        small_rig.put(room - 1)
        rivals = small_rig.keys(THREADS, first=room)
        items = [small_rig.whole(key) for key in rivals]
        for _ in range(ROUNDS):
            outcomes = small_rig.driver.store(*items)
            assert set(outcomes) <= {DONE, REJECTED}
            there = small_rig.driver.has(*small_rig.keys(room + THREADS)).count(DONE)
            assert there <= room, f"{there} objects are there, and there is room for {room}"
            small_rig.driver.delete(*rivals)


def _traced_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]
