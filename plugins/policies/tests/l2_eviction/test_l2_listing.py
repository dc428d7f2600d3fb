"""What an adapter holds from before, and what others store there, becomes known to its eviction."""

from __future__ import annotations

import pytest

from lmcache_core.contracts.capability import Capability
from lmcache_core.model.results import KeyPage
from lmcache_policies.l2_eviction import watermark
from lmcache_policies.l2_eviction.listing import L2Listing
from plugins.policies.tests.l2_eviction.eviction_harness import OBJECT, EvictionHarness, key


def test_a_listing_begins_when_the_adapter_knows_how_large_its_objects_are(
    eviction_harness: EvictionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    eviction_harness.adapter.objects = {key(number).object_id: bytes(OBJECT) for number in range(90)}
    eviction_harness.adapter.lists = (KeyPage(tuple(key(number) for number in range(90)), None),)
    answers = [None, None]
    usage = eviction_harness.adapter.usage
    monkeypatch.setattr(eviction_harness.adapter, "usage", lambda: answers.pop() if answers else usage())
    L2Listing(eviction_harness.client, eviction_harness.eviction).run()
    eviction_harness.turn()
    assert answers == []
    assert eviction_harness.eviction.status()["known_bytes"] == 90 * OBJECT


def test_what_was_there_before_is_listed_and_can_go(eviction_harness: EvictionHarness) -> None:
    eviction_harness.adapter.objects = {key(number).object_id: bytes(OBJECT) for number in range(90)}
    keys = [key(number) for number in range(90)]
    eviction_harness.adapter.lists = (KeyPage(tuple(keys[:50]), "1"), KeyPage(tuple(keys[50:]), None))
    listing = L2Listing(eviction_harness.client, eviction_harness.eviction)
    listing.run()
    assert (listing.state, listing.objects) == ("done", 90)
    eviction_harness.turn()
    assert eviction_harness.eviction.status()["known_bytes"] == 90 * OBJECT, "each counts as large as the average"
    assert len(eviction_harness.delete()) == 18
    listing.run()
    assert listing.objects == 90, "once"


def test_what_others_store_in_a_shared_backend_is_found_by_the_next_listing(
    eviction_harness: EvictionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    eviction_harness.client.capabilities |= Capability.SHARED
    eviction_harness.adapter.lists = (KeyPage((key(1),), None),)
    listing = L2Listing(eviction_harness.client, eviction_harness.eviction)
    pauses: list[float] = []

    def others_store(seconds: float) -> bool:
        pauses.append(seconds)
        eviction_harness.adapter.lists = (KeyPage((key(1), key(2)), None),)
        return len(pauses) > 1

    monkeypatch.setattr(listing._stop, "wait", others_store)
    listing.run()
    eviction_harness.turn()
    assert pauses == [600.0, 600.0]
    assert (listing.state, listing.objects) == ("done", 2)
    assert eviction_harness.eviction.status()["known_objects"] == 2


def test_listed_objects_are_as_large_as_others_of_their_space(eviction_harness: EvictionHarness) -> None:
    eviction_harness.store(1, size=2 * OBJECT)
    eviction_harness.eviction.listed([key(1), key(2)])
    eviction_harness.turn()
    assert eviction_harness.eviction.status()["known_bytes"] == 4 * OBJECT


def test_a_wrong_guess_of_sizes_does_not_empty_the_adapter(
    eviction_harness: EvictionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watermark, "SLICE", 10)
    eviction_harness.adapter.objects = {key(number).object_id: bytes(OBJECT) for number in range(90)}
    monkeypatch.setattr(eviction_harness.eviction._contents, "_usual_size", lambda name: 1)
    eviction_harness.eviction.listed([key(number) for number in range(90)])
    eviction_harness.turn()
    while eviction_harness.deletes():
        eviction_harness.delete()
    assert len(eviction_harness.adapter.objects) == 70


def test_a_listing_that_fails_is_tried_again_and_then_abandoned(
    eviction_harness: EvictionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    eviction_harness.adapter.lists = (OSError("no"),)
    listing = L2Listing(eviction_harness.client, eviction_harness.eviction)
    monkeypatch.setattr(listing._stop, "wait", pauses.append)
    listing.run()
    assert (listing.state, pauses) == ("failed", [1.0, 4.0, 16.0, 60.0])


@pytest.mark.parametrize("back_to", ["1", "0", b"1", 1])
def test_a_listing_that_goes_in_circles_is_abandoned(
    eviction_harness: EvictionHarness, monkeypatch: pytest.MonkeyPatch, back_to: object
) -> None:
    pages = (KeyPage((), "1"), KeyPage((key(1),), "2"), KeyPage((key(2),), back_to))  # type: ignore[arg-type]
    eviction_harness.adapter.lists = pages
    listing = L2Listing(eviction_harness.client, eviction_harness.eviction)
    monkeypatch.setattr(listing._stop, "wait", lambda seconds: None)
    listing.run()
    assert listing.state == "failed"


def test_what_a_lookup_finds_is_known_from_then_on(eviction_harness: EvictionHarness) -> None:
    eviction_harness.adapter.objects = {key(number).object_id: bytes(OBJECT) for number in range(90)}
    eviction_harness.look(*range(90))
    assert eviction_harness.eviction.status()["known_objects"] == 90
    eviction_harness.later()
    assert len(eviction_harness.deletes()) == 18
