"""What is read only takes nothing, removes nothing, and keeps to what is there now."""

from __future__ import annotations

import time

import pytest

from lmcache_core.contracts.capability import Capability
from lmcache_core.model.results import Outcome
from lmcache_devkit.l2.fixtures import L2Fixtures
from lmcache_devkit.l2.media import Media
from lmcache_devkit.l2.rig import Rig

DONE, MISSING, REJECTED = Outcome.DONE, Outcome.MISSING, Outcome.REJECTED
WATCH_SECONDS = 0.1


class ReadOnly(L2Fixtures):
    @pytest.fixture
    def reader(self, rig: Rig) -> Rig:
        rig.require(Capability.READ_ONLY)
        return rig

    def test_a_store_to_what_is_read_only_is_refused_and_released(self, reader: Rig) -> None:
        """Each object of it, and none is there afterwards."""
        items = [reader.whole(key) for key in reader.keys(3)]
        job = reader.driver.submit_store(items)
        assert reader.driver.finish(job) == (REJECTED,) * 3
        reader.driver.wait_released(job)
        for _, buffer in items:
            buffer.view[:] = bytes(buffer.length)
        time.sleep(WATCH_SECONDS)
        assert reader.driver.has(*reader.keys(3)) == (MISSING,) * 3

    def test_what_is_read_only_is_not_deleted_from_here(self, reader: Rig) -> None:
        """Whatever it answers, the object is there as before; and DELETE is not declared, so that no eviction is planned."""
        assert Capability.DELETE not in reader.capabilities, "READ_ONLY and DELETE contradict each other"
        (key,) = reader.put(1)
        assert reader.driver.delete(key) != (DONE,)
        assert reader.driver.has(key) == (DONE,)
        reader.assert_whole(key)

    def test_what_has_left_where_it_is_read_from_is_not_a_hit(self, reader: Rig, media: Media | None) -> None:
        """Neither of a lookup nor of a load, and what has come since is one."""
        stays, leaves = reader.put(2)
        assert media is not None
        assert reader.driver.has(stays, leaves) == (DONE, DONE)
        reader.assert_whole(stays, leaves)
        media.remove(leaves)
        assert reader.driver.load(reader.empty(leaves), reader.empty(stays)) == (MISSING, DONE)
        assert reader.driver.has(leaves, stays) == (MISSING, DONE)
        (comes,) = reader.put(1, first=2)
        assert reader.driver.has(leaves, comes) == (MISSING, DONE)
        reader.assert_whole(comes)
