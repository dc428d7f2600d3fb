"""Listing L1 in pages while it changes, and removing single objects."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.tests.storage.storage_harness import CHUNKS, PAYLOAD, SLOT, WORKER, StorageHarness, open_storage, space
from lmcache_admin import l1_listing
from lmcache_admin.key_filter import KeyFilter
from lmcache_admin.l1_listing import L1Listing, L1Removal
from lmcache_admin.pins import PinSubject
from lmcache_core import CachedObject
from lmcache_core.contracts.cache_control import AddressedChunks
from lmcache_core.contracts.storage import Shard
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.object_header import digest
from plugins.admin.tests.operator_parts import cache_of, listing, pins_of

ANY = KeyFilter()


def listed(harness: StorageHarness, page_size: int, only: KeyFilter = ANY) -> list[CachedObject]:
    found: list[CachedObject] = []
    at: int | None = 0
    while at is not None:
        page = listing(harness).page(at, page_size, only)
        assert len(page.objects) <= page_size
        assert page.next_slot is None or page.next_slot > at
        found += page.objects
        at = page.next_slot
    return found


def hashes(found: list[CachedObject]) -> list[bytes]:
    return sorted(each.key.chunk_hash for each in found)


@pytest.mark.parametrize("page_size", [1, 3, 8, 100])
def test_every_object_is_on_one_page(harness: StorageHarness, page_size: int) -> None:
    assert listed(harness, page_size) == []
    harness.put(*CHUNKS)
    harness.settle()
    pins_of(harness).pin("p", PinSubject("m", ""), None, _named(CHUNKS[0]))
    found = listed(harness, page_size)
    assert hashes(found) == list(CHUNKS)
    states = {each.key.chunk_hash: each.state for each in found}
    assert states == {CHUNKS[0]: "pinned", **dict.fromkeys(CHUNKS[1:], "cached")}
    assert {(each.payload_bytes, each.slot_bytes) for each in found} == {(PAYLOAD, SLOT)}
    pins_of(harness).unpin("p")


def test_a_filter_leaves_the_others_out(harness: StorageHarness) -> None:
    harness.put(*CHUNKS[:2])
    harness.put(*CHUNKS[2:5], into=space(1))
    assert len(listed(harness, 2, KeyFilter("m"))) == 5
    assert listed(harness, 2, KeyFilter("n")) == []
    assert listed(harness, 2, KeyFilter(None, "alice")) == []
    assert len(listed(harness, 2, KeyFilter("m", ""))) == 5
    harness.settle()


def test_one_page_looks_at_a_bounded_number_of_slots(harness: StorageHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(l1_listing, "LOOKED_AT_MAX", 4)
    monkeypatch.setattr(l1_listing, "SLICE", 2)
    harness.put(*CHUNKS)
    harness.settle()
    page = listing(harness).page(0, 100, KeyFilter("absent"))
    assert (page.objects, page.next_slot) == ((), 4)
    assert hashes(listed(harness, 100)) == list(CHUNKS)


@settings(max_examples=60, deadline=None)
@given(
    page_size=st.integers(1, 4),
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 7)), max_size=12),
    stay=st.sets(st.integers(0, 7), max_size=4),
)
def test_what_stays_is_listed_once_whatever_comes_and_goes(
    page_size: int, steps: list[tuple[bool, int]], stay: set[int]
) -> None:
    """Between any two pages other objects leave and come back, in whatever slot is free then."""
    with open_storage(StorageHarness()) as harness:
        harness.put(*CHUNKS)
        harness.settle()
        found: list[CachedObject] = []
        at: int | None = 0
        while at is not None:
            page = listing(harness).page(at, page_size, ANY)
            found += page.objects
            at = page.next_slot
            for removes, chunk in steps:
                if chunk in stay:
                    continue
                if removes:
                    listing(harness).remove([_key(CHUNKS[chunk])], force=False)
                else:
                    put_if_absent(harness, CHUNKS[chunk])
        seen = hashes(found)
        assert all(seen.count(CHUNKS[chunk]) == 1 for chunk in stay)


def test_removal_says_what_became_of_each(harness: StorageHarness) -> None:
    harness.put(*CHUNKS[:3])
    harness.put(CHUNKS[0], into=space(1))
    harness.settle()
    harness.ask(CHUNKS[1])
    keys = [_key(CHUNKS[0]), _key(CHUNKS[0]), _key(CHUNKS[1]), _key(CHUNKS[5]), ObjectKey(space(1).space, CHUNKS[0])]
    assert listing(harness).remove(keys, force=False) == L1Removal(removed=2, missing=1, skipped=1)
    assert listing(harness).remove(keys, force=True) == L1Removal(removed=1, missing=3, skipped=0)
    assert hashes(listed(harness, 9)) == [CHUNKS[1], CHUNKS[2]], "what leaves with its reader is still to be seen"
    assert {each.state for each in listed(harness, 9)} == {"leaving", "cached"}
    harness.storage.end_lookup(b"c", "r")
    assert hashes(listed(harness, 9)) == [CHUNKS[2]]


def test_digests_are_those_of_the_payload(harness: StorageHarness) -> None:
    harness.put(*CHUNKS[:2])
    harness.settle()
    ((first, second, third),) = listing(harness).digests(_named(*CHUNKS[:3]))
    assert (first, second) == tuple(digest(chunk * (PAYLOAD // 32)) for chunk in CHUNKS[:2])
    assert third is None
    assert harness.cache.contents.state_counts().leases == 0


def test_a_digest_of_what_the_disk_has_lost_is_an_error(
    harness: StorageHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(slot: int) -> None:
        raise OSError(errno.EFAULT, "Bad address")

    harness.put(CHUNKS[0])
    harness.settle()
    monkeypatch.setattr(harness.cache, "fetch", lost)
    with pytest.raises(OSError, match="Bad address"):
        listing(harness).digests(_named(CHUNKS[0]))
    assert harness.cache.contents.state_counts().leases == 0


def test_no_request_waits_behind_a_long_listing(harness: StorageHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two slices the lock is free for as long as it takes others to get it."""
    monkeypatch.setattr(l1_listing, "SLICE", 2)
    harness.put(*CHUNKS)
    harness.settle()
    free: list[bool] = []
    objects = L1Listing(
        cache_of(harness), pins_of(harness), pause=lambda _: free.append(not harness.cache._index.lock.locked())
    )
    objects.page(0, 100, ANY)
    assert len(free) >= len(CHUNKS) // 2 - 1
    assert all(free)


def put_if_absent(harness: StorageHarness, chunk: bytes) -> None:
    references, _ = harness.storage.reserve(WORKER, space(), [chunk])
    if references.slots:
        assert harness.storage.publish(references, 0, "r")
    harness.settle()


def _key(chunk: bytes) -> ObjectKey:
    return ObjectKey(space().space, chunk)


def _named(*chunks: bytes) -> AddressedChunks:
    return AddressedChunks((Shard((space(),)),), chunks, is_prompt=False)
