"""A listing names every object once, whatever happens between its pages."""

from __future__ import annotations

import threading

import pytest

from lmcache_core.contracts.capability import Capability
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.results import Outcome
from lmcache_devkit.l2.fixtures import L2Fixtures
from lmcache_devkit.l2.rig import Rig

MANY = 5_000
"""Where a backend holds more than this, listing it key by key takes too long for a test."""


class Listing(L2Fixtures):
    @pytest.mark.parametrize("limit", [1, 3, 7, 100])
    def test_a_listing_names_every_object_once(self, rig: Rig, limit: int) -> None:
        rig.require(Capability.LIST)
        _skip_where_many(rig, limit)
        keys = rig.put(7, payload_bytes=100)
        other = rig.key(0, cache_salt=f"another tenant {rig.token}")
        assert rig.driver.store(rig.whole(other)) == (Outcome.DONE,)
        listed = rig.driver.keys(limit)
        assert len(listed) == len(set(listed)), "a key is listed twice"
        assert sorted(key.canonical for key in rig.own(listed)) == sorted(key.canonical for key in [*keys, other])

    def test_a_listing_leaves_out_what_was_deleted(self, rig: Rig) -> None:
        rig.require(Capability.LIST | Capability.DELETE)
        keys = rig.put(6, payload_bytes=100)
        rig.driver.delete(*keys[::2])
        assert set(rig.own(rig.driver.keys(100))) == set(keys[1::2])

    def test_a_listing_survives_deletes_between_two_pages(self, rig: Rig) -> None:
        rig.require(Capability.LIST | Capability.DELETE)
        _skip_where_many(rig, 5)
        stay = rig.put(12, payload_bytes=100)
        first = rig.driver.adapter.list_keys(None, 5)
        assert len(first.keys) == 5
        assert first.cursor is not None
        rig.driver.delete(*rig.own(first.keys))
        _assert_listed_once([*first.keys, *rig.driver.keys(5, first.cursor)], stay)

    def test_a_listing_survives_stores_between_two_pages(self, rig: Rig) -> None:
        rig.require(Capability.LIST)
        _skip_where_many(rig, 5)
        stay = rig.put(12, payload_bytes=100)
        first = rig.driver.adapter.list_keys(None, 5)
        rig.put(60, first=50, payload_bytes=100)
        _assert_listed_once([*first.keys, *rig.driver.keys(5, first.cursor)], stay)

    def test_a_listing_survives_changes_while_it_runs(self, rig: Rig) -> None:
        rig.require(Capability.LIST | Capability.DELETE)
        _skip_where_many(rig, 4)
        stay = rig.put(30, payload_bytes=100)
        others = [rig.whole(key, 100) for key in rig.keys(30, first=100)]
        stop = threading.Event()

        def change() -> None:
            while not stop.is_set():
                rig.driver.submit_store(others)
                rig.driver.adapter.submit_delete([key for key, _ in others])
                stop.wait(0.005)
                while getattr(rig.driver.adapter, "in_flight", 0) > 200 and not stop.is_set():
                    stop.wait(0.005)

        thread = threading.Thread(target=change)
        thread.start()
        try:
            for _ in range(5):
                _assert_listed_once(rig.driver.keys(4), stay)
        finally:
            stop.set()
            thread.join()


def _assert_listed_once(listed: list[ObjectKey], stay: list[ObjectKey]) -> None:
    assert len(listed) == len(set(listed)), "a key is listed twice"
    assert set(stay) <= set(listed), "a key that was there all the time is not listed"


def _skip_where_many(rig: Rig, limit: int) -> None:
    usage = rig.driver.usage()
    if usage is not None and usage.objects > MANY * limit:
        pytest.skip(f"the backend holds {usage.objects} objects, too many to list {limit} at a time")
