"""Several servers on one backend."""

from __future__ import annotations

from lmcache_core.contracts.capability import Capability
from lmcache_core.model.results import Outcome
from lmcache_core.testing.l2.fixtures import L2Fixtures
from lmcache_core.testing.l2.rig import Rig, assert_right

DONE, MISSING = Outcome.DONE, Outcome.MISSING


class Sharing(L2Fixtures):
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
        rig.require(Capability.SHARED)
        other = rig.open()
        for number in range(10):
            items = [rig.whole(rig.key(number)) for _ in range(2)]
            jobs = rig.driver.submit_store([items[0]]), other.submit_store([items[1]])
            assert rig.driver.finish(jobs[0]) == other.finish(jobs[1]) == (DONE,)
        rig.assert_whole(*rig.keys(10))
        if Capability.LIST in rig.capabilities:
            assert sorted(rig.own(rig.driver.keys(100))) == sorted(rig.keys(10))

    def test_what_one_deleted_is_no_hit_of_the_other(self, rig: Rig) -> None:
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
