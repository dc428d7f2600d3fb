"""What a lookup found stays until it is unpinned."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest

from lmcache_core.contracts.capability import Capability
from lmcache_core.model.results import Outcome
from lmcache_devkit.borrowed_memory import BorrowedMemory
from lmcache_devkit.l2.fixtures import L2Fixtures
from lmcache_devkit.l2.rig import OBJECT_BYTES, Rig
from lmcache_devkit.offer_under_test import OpenableOffer

DONE, MISSING, REJECTED = Outcome.DONE, Outcome.MISSING, Outcome.REJECTED
WATCH_SECONDS = 0.3


class Pins(L2Fixtures):
    def test_a_pinned_object_stays_until_its_last_pin_is_gone(self, rig: Rig) -> None:
        rig.require(Capability.DELETE)
        (key,) = rig.put(1)
        assert rig.driver.lookup(key) == rig.driver.lookup(key) == (DONE,)
        for _ in range(2):
            assert rig.driver.delete(key) == (REJECTED,)
            rig.assert_whole(key)
            rig.driver.unpin(key)
        assert rig.driver.delete(key) == (DONE,)

    def test_a_key_twice_in_a_lookup_is_pinned_twice(self, rig: Rig) -> None:
        rig.require(Capability.DELETE)
        (key,) = rig.put(1)
        assert rig.driver.lookup(key, key) == (DONE, DONE)
        rig.driver.unpin(key)
        assert rig.driver.delete(key) == (REJECTED,)
        rig.driver.unpin(key)
        assert rig.driver.delete(key) == (DONE,)

    def test_a_lookup_pins_only_what_it_found_and_unpinning_the_rest_is_ignored(self, rig: Rig) -> None:
        rig.require(Capability.DELETE)
        absent = rig.key(0)
        assert rig.driver.lookup(absent) == (MISSING,)
        rig.driver.adapter.unpin([absent, absent])
        (key,) = rig.put(1)
        assert rig.driver.lookup(key) == (DONE,)
        assert rig.driver.delete(key) == (REJECTED,)
        rig.driver.unpin(key)
        assert rig.driver.delete(key) == (DONE,)

    def test_one_pinned_key_of_a_delete_keeps_none_of_the_others(self, rig: Rig) -> None:
        rig.require(Capability.DELETE)
        keys = rig.put(3)
        assert rig.driver.lookup(keys[1]) == (DONE,)
        assert rig.driver.delete(*keys) == (DONE, REJECTED, DONE)
        rig.assert_whole(keys[1])
        rig.driver.unpin(keys[1])

    def test_a_pinned_object_is_not_evicted_for_others(
        self, small_settings: Mapping[str, Any] | None, under_test: OpenableOffer, memory: BorrowedMemory
    ) -> None:
        """A backend that makes room by itself leaves alone what is pinned; one that rejects what is too much, too.  All but one
        are pinned, so that whatever an evictor that ignores pins would choose, it soon chooses one of them."""
        if small_settings is None:
            pytest.skip("the fixture small_settings gives no backend of small_bytes")
        rig = Rig(OpenableOffer(under_test.offer, small_settings), memory, self.wait_seconds)
        room = self.small_bytes // OBJECT_BYTES
        try:
            pinned = rig.put(room)[1:]
            assert rig.driver.lookup(*pinned) == (DONE,) * len(pinned)
            for number in range(room, 4 * room):
                key = rig.key(number)
                assert rig.driver.store(rig.whole(key))[0] in (DONE, REJECTED)
            rig.assert_whole(*pinned)
            time.sleep(WATCH_SECONDS)  # an evictor may have a thread of its own
            rig.assert_whole(*pinned)
            rig.driver.unpin(*pinned)
        finally:
            rig.finish()
