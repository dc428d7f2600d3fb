"""A batch is answered key by key."""

from __future__ import annotations

from lmcache_core.contracts.capability import Capability
from lmcache_core.model.results import Outcome
from lmcache_devkit.l2.fixtures import L2Fixtures
from lmcache_devkit.l2.rig import BATCH_MAX, OBJECT_BYTES, Rig, assert_right

DONE, MISSING, DAMAGED = Outcome.DONE, Outcome.MISSING, Outcome.DAMAGED


class Batches(L2Fixtures):
    def test_a_batch_of_nothing_is_answered(self, rig: Rig) -> None:
        driver = rig.driver
        assert driver.store() == driver.load() == driver.lookup() == driver.delete() == ()

    def test_a_batch_of_a_thousand_is_answered_in_full(self, rig: Rig) -> None:
        keys = rig.put(BATCH_MAX, payload_bytes=200)
        assert rig.driver.has(*keys) == (DONE,) * BATCH_MAX
        rig.assert_whole(*keys, payload_bytes=200)
        if Capability.DELETE in rig.capabilities:
            assert rig.driver.delete(*keys) == (DONE,) * BATCH_MAX
            assert rig.driver.has(*keys) == (MISSING,) * BATCH_MAX

    def test_outcomes_stand_in_the_order_of_the_keys(self, rig: Rig) -> None:
        keys = rig.put(20)
        mixed = [rig.key(100 + number) if number % 3 else keys[number] for number in range(20)]
        expected = tuple(MISSING if number % 3 else DONE for number in range(20))
        assert rig.driver.has(*mixed) == expected
        assert rig.driver.load(*map(rig.empty, mixed)) == expected

    def test_each_key_of_a_load_has_its_own_outcome(self, rig: Rig) -> None:
        """Whole, missing, of another length, whole, and one whose bytes are another object's."""
        whole, short, last = rig.put(3)
        foreign = rig.key(50)
        _, bytes_of_another = rig.whole(rig.key(51))
        (planted,) = rig.driver.store((foreign, bytes_of_another))
        if planted is DONE:
            rig.unremovable.append(foreign)
        items = [
            rig.empty(whole),
            rig.empty(rig.key(60)),
            (short, rig.memory.lend(OBJECT_BYTES - 1)),
            rig.empty(last),
            rig.empty(foreign),
        ]
        expected = (DONE, MISSING, DAMAGED, DONE, Outcome.FOREIGN if planted is DONE else MISSING)
        assert rig.driver.verified_load(*items) == expected
        assert_right(*items[0])
        assert_right(*items[3])

    def test_one_key_twice_in_a_batch_is_two_outcomes(self, rig: Rig) -> None:
        key = rig.key(0)
        assert rig.driver.store(rig.whole(key), rig.whole(key)) == (DONE, DONE)
        assert rig.driver.has(key, key) == (DONE, DONE)
        items = rig.empty(key), rig.empty(key)
        assert rig.driver.load(*items) == (DONE, DONE)
        for item in items:
            assert_right(*item)
