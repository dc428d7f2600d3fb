"""Several servers on one backend: none remembers what another has changed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar

import pytest

from lmcache_core.contracts.capability import Capability
from lmcache_core.model.results import Outcome
from lmcache_devkit.l2.fixtures import L2Fixtures
from lmcache_devkit.l2.rig import Rig, assert_right
from lmcache_devkit.peer import Peer

DONE, MISSING = Outcome.DONE, Outcome.MISSING


LOOK_SECONDS = 0.05


class Sharing(L2Fixtures):
    absent_seconds_max: ClassVar[float] = 5.0
    """How long an adapter may answer MISSING from memory after another server has stored the object."""
    reached_by_processes: ClassVar[bool] = True
    """False: another process cannot open the offer on the same backend, because that is simulated in this one."""

    def test_two_that_are_open_at_once_see_what_the_other_stored(self, rig: Rig) -> None:
        rig.require(Capability.SHARED)
        other = rig.open()
        keys = rig.put(4)
        assert other.has(*keys) == (DONE,) * 4
        items = [rig.empty(key) for key in keys]
        assert other.load(*items) == (DONE,) * 4
        for item in items:
            assert_right(*item)
        late = rig.key(9)
        assert other.store(rig.whole(late)) == (DONE,)
        rig.assert_whole(late)

    def test_two_that_store_one_key_are_both_done_with_one_object(self, rig: Rig) -> None:
        rig.require_stores()
        rig.require(Capability.SHARED)
        other = rig.open()
        for number in range(10):
            items = [rig.whole(rig.key(number)) for _ in range(2)]
            jobs = rig.driver.submit_store([items[0]]), other.submit_store([items[1]])
            assert rig.driver.finish(jobs[0]) == other.finish(jobs[1]) == (DONE,)
        rig.assert_whole(*rig.keys(10))
        if Capability.LIST in rig.capabilities:
            assert sorted(rig.own(rig.driver.keys(100))) == sorted(rig.keys(10))

    def test_what_one_deleted_is_not_a_hit_of_the_other(self, rig: Rig) -> None:
        rig.require(Capability.SHARED | Capability.DELETE)
        other = rig.open()
        keys = rig.put(3)
        assert other.delete(keys[0]) == (DONE,)
        assert rig.driver.load(*map(rig.empty, keys)) == (MISSING, DONE, DONE)

    def test_one_that_closes_leaves_the_other_working(self, rig: Rig) -> None:
        rig.require(Capability.SHARED)
        other = rig.open()
        keys = rig.put(2)
        other.close(self.wait_seconds)
        rig.assert_whole(*keys)
        rig.put(2, first=10)

    def test_what_another_stores_is_found_although_it_was_missed_before(self, rig: Rig) -> None:
        rig.require(Capability.SHARED)
        other = rig.open()
        keys = rig.keys(4)
        assert other.has(*keys) == (MISSING,) * 4
        assert other.load(*map(rig.empty, keys)) == (MISSING,) * 4
        rig.put(4)
        self._within_limit(lambda: other.has(*keys) == (DONE,) * 4)
        items = [rig.empty(key) for key in keys]
        assert other.load(*items) == (DONE,) * 4
        for item in items:
            assert_right(*item)

    def test_what_another_deleted_is_not_a_hit_although_it_was_found_before(self, rig: Rig) -> None:
        """A lookup may remember it for a while; a load may not, and a lookup after such a load may not either."""
        rig.require(Capability.SHARED | Capability.DELETE)
        other = rig.open()
        keys = rig.put(3)
        for driver in (rig.driver, other):
            assert driver.has(*keys) == (DONE,) * 3
            assert driver.load(*map(rig.empty, keys)) == (DONE,) * 3
        assert other.delete(*keys[:2]) == (DONE, DONE)
        assert rig.driver.load(rig.empty(keys[0]), rig.empty(keys[2])) == (MISSING, DONE)
        assert rig.driver.has(keys[0], keys[2]) == (MISSING, DONE), "a load has just found that it is gone"
        assert rig.driver.store(*map(rig.whole, keys[:2])) == (DONE, DONE)
        rig.assert_whole(*keys)
        self._within_limit(lambda: other.has(*keys) == (DONE,) * 3)

    def test_two_processes_see_what_the_other_does(self, rig: Rig) -> None:
        rig.require_stores()
        rig.require(Capability.SHARED)
        if not self.reached_by_processes:
            pytest.skip("another process cannot open this backend (reached_by_processes)")
        keys = rig.keys(4)
        rig.driver.stored.update((key.object_id, key) for key in keys)
        with Peer(rig.under_test, keys[0]) as peer:
            assert rig.driver.has(*keys) == peer.has(0, 1, 2, 3) == (MISSING,) * 4
            assert peer.store(0, 1) == (DONE, DONE)
            self._within_limit(lambda: rig.driver.has(*keys) == (DONE, DONE, MISSING, MISSING))
            rig.assert_whole(*keys[:2])
            rig.put(2, first=2)
            self._within_limit(lambda: peer.has(0, 1, 2, 3) == (DONE,) * 4)
            assert peer.load(2, 3) == (DONE, DONE)
            if Capability.DELETE in rig.capabilities:
                assert peer.delete(0) == (DONE,)
                assert rig.driver.load(*map(rig.empty, keys)) == (MISSING, DONE, DONE, DONE)
                assert rig.driver.has(*keys) == (MISSING, DONE, DONE, DONE)
                assert rig.driver.delete(keys[2]) == (DONE,)
                assert peer.load(2, 3) == (MISSING, DONE)
                assert peer.has(2, 3) == (MISSING, DONE)

    def _within_limit(self, is_so: Callable[[], bool]) -> None:
        end = time.monotonic() + self.absent_seconds_max
        while not is_so():
            assert time.monotonic() < end, (
                f"what another server stored is still MISSING {self.absent_seconds_max:g} s later (absent_seconds_max): "
                "do not remember that something is missing, or for a second or so"
            )
            time.sleep(LOOK_SECONDS)
