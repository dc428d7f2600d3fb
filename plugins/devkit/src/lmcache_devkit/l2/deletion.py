"""What was deleted is gone, and what core rejected is not offered again."""

from __future__ import annotations

import threading

import pytest

from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.completion import JobId
from lmcache_core.model.results import Outcome
from lmcache_devkit.borrowed_memory import UNWRITTEN
from lmcache_devkit.l2.fixtures import L2Fixtures
from lmcache_devkit.l2.rig import Rig, assert_right

DONE, MISSING, REJECTED = Outcome.DONE, Outcome.MISSING, Outcome.REJECTED
ROUNDS = 40


class Deletion(L2Fixtures):
    def test_what_was_deleted_is_gone(self, rig: Rig) -> None:
        rig.require(Capability.DELETE)
        keys = rig.put(3)
        assert rig.driver.has(*keys, rig.key(99)) == (DONE, DONE, DONE, MISSING)  # what a lookup remembers must go, too
        rig.assert_whole(*keys)
        assert rig.driver.delete(keys[1], rig.key(99)) == (DONE, MISSING)
        assert rig.driver.has(*keys) == (DONE, MISSING, DONE)
        assert rig.driver.load(rig.empty(keys[1])) == (MISSING,)
        rig.assert_whole(keys[0], keys[2])
        assert rig.driver.store(rig.whole(keys[1])) == (DONE,)
        rig.assert_whole(keys[1])

    def test_deleting_twice_is_missing_the_second_time(self, rig: Rig) -> None:
        rig.require(Capability.DELETE)
        (key,) = rig.put(1)
        assert rig.driver.delete(key) == (DONE,)
        assert rig.driver.delete(key) == (MISSING,)

    def test_an_object_that_is_deleted_while_it_is_loaded_is_whole_or_missing(self, rig: Rig) -> None:
        rig.require(Capability.DELETE)
        payload_bytes = 200_000
        targets = [rig.empty(rig.key(0), payload_bytes) for _ in range(4)]
        whole = rig.whole(rig.key(0), payload_bytes)
        for _ in range(ROUNDS):
            assert rig.driver.store(whole) == (DONE,)
            for _, buffer in targets:
                buffer.view[:] = UNWRITTEN * buffer.length
            jobs: list[JobId] = []

            def delete(jobs: list[JobId] = jobs) -> None:
                jobs.append(rig.driver.adapter.submit_delete([rig.key(0)]))

            thread = threading.Thread(target=delete)
            thread.start()
            loads = [rig.driver.submit_load([item]) for item in targets]
            thread.join()
            for item, load in zip(targets, loads, strict=True):
                (outcome,) = rig.driver.finish(load)
                assert outcome in (DONE, MISSING)
                if outcome is DONE:
                    assert_right(*item)
            if rig.driver.finish(jobs[0]) == (REJECTED,):  # the adapter pins what it is loading
                assert rig.driver.delete(rig.key(0)) == (DONE,)

    @pytest.mark.parametrize("outcome", [Outcome.DAMAGED, Outcome.FOREIGN])
    def test_what_was_rejected_is_not_offered_again(self, rig: Rig, outcome: Outcome) -> None:
        """An adapter may read a damaged object again, and offer it once more where it is whole."""
        rejected, other = rig.put(2)
        if outcome is Outcome.FOREIGN:
            rig.unremovable.append(rejected)
        offered = []
        for _ in range(3):
            rig.driver.adapter.reject(rejected, outcome)
            offered.append(rig.driver.has(rejected, other))
        assert set(offered) <= {(MISSING, DONE), (DONE, DONE)}
        assert offered.count((DONE, DONE)) <= (outcome is Outcome.DAMAGED), "it is offered again"

    def test_a_damaged_object_can_be_stored_anew(self, rig: Rig) -> None:
        rig.require(Capability.DELETE)
        (key,) = rig.put(1)
        rig.driver.adapter.reject(key, Outcome.DAMAGED)
        rig.store_anew(key)
        assert rig.driver.has(key) == (DONE,)
