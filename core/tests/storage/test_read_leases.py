"""Leases of other servers: where objects lie, sealed, within a limit, and never longer than their deadline."""

from __future__ import annotations

from core.tests.storage.storage_harness import CHUNKS, PAYLOAD, SLOT, WORKER, StorageHarness, space
from lmcache_core.contracts.storage import LeasedObject
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.object_header import HEADER_BYTES, check
from lmcache_core.model.results import Outcome
from lmcache_devkit.l1_audit import audit

KEYS = [ObjectKey(space().space, chunk) for chunk in CHUNKS]
ALL = 1 << 30


def stored(harness: StorageHarness, chunks: int) -> None:
    """The first chunks are in L1, each with bytes of its own."""
    references, _ = harness.storage.reserve(WORKER, space(), CHUNKS[:chunks])
    for number, slot in enumerate(references.slots):
        harness.cache.buffer(slot).view[HEADER_BYTES:] = bytes([number + 1]) * PAYLOAD
    assert harness.storage.publish(references, 0, "r")
    harness.settle()


def held(harness: StorageHarness) -> int:
    return harness.cache.contents.state_counts().held


def run_of(harness: StorageHarness, leased: LeasedObject) -> memoryview:
    return harness.arena.region.view[leased.offset : leased.offset + leased.length]


def test_what_is_there_is_leased_with_gaps_and_sealed(harness: StorageHarness) -> None:
    stored(harness, 3)
    asked = [KEYS[5], KEYS[0], KEYS[2], ObjectKey(space(1).space, CHUNKS[0])]
    lease = harness.storage.lease_reads("peer", asked, 15, ALL)
    assert [each is not None for each in lease.objects] == [False, True, True, False]
    for key, leased in zip(asked, lease.objects, strict=True):
        if leased is not None:
            assert check(run_of(harness, leased), key).outcome is Outcome.DONE
    assert (held(harness), lease.size_bytes) == (2, 2 * SLOT)
    lease.end()
    lease.end()
    assert (held(harness), lease.size_bytes) == (0, 0)
    audit(harness.cache)


def test_a_header_is_sealed_once(harness: StorageHarness) -> None:
    stored(harness, 1)
    (leased,) = harness.storage.lease_reads("one", KEYS[:1], 15, ALL).objects
    assert leased is not None
    page = bytes(run_of(harness, leased)[:HEADER_BYTES])
    harness.clock.advance(5)
    harness.storage.lease_reads("two", KEYS[:1], 15, ALL)
    assert bytes(run_of(harness, leased)[:HEADER_BYTES]) == page, "a peer may be reading it"


def test_the_next_object_of_a_slot_is_sealed_anew(harness: StorageHarness) -> None:
    stored(harness, 1)
    lease = harness.storage.lease_reads("peer", KEYS[:1], 15, ALL)
    first = lease.objects[0]
    lease.end()
    assert lease.objects == [None]
    assert harness.storage.clear(False) == 1
    references, _ = harness.storage.reserve(WORKER, space(), CHUNKS[:1])
    harness.cache.buffer(references.slots[0]).view[HEADER_BYTES:] = bytes([9]) * PAYLOAD
    assert harness.storage.publish(references, 0, "r")
    (leased,) = harness.storage.lease_reads("peer", KEYS[:1], 15, ALL).objects
    assert leased == first, "it lies in the same slot"
    assert leased is not None
    assert check(run_of(harness, leased), KEYS[0]).outcome is Outcome.DONE


def test_a_lease_ends_at_its_deadline_and_nothing_is_quarantined(harness: StorageHarness) -> None:
    stored(harness, 2)
    lease = harness.storage.lease_reads("peer", KEYS[:2], 10, ALL)
    harness.clock.advance(8)
    assert lease.renew(10)
    harness.clock.advance(8)
    harness.storage.expire()
    assert held(harness) == 2, "it was renewed"
    harness.clock.advance(3)
    harness.storage.expire()
    assert held(harness) == 0
    assert harness.cache.contents.state_counts().quarantined == 0
    assert not lease.renew(10)
    assert lease.size_bytes == 0
    audit(harness.cache)


def test_no_more_than_the_limit_is_leased(harness: StorageHarness) -> None:
    stored(harness, 3)
    lease = harness.storage.lease_reads("peer", KEYS[:3], 15, 2 * SLOT)
    assert [each is not None and each.length > 0 for each in lease.objects] == [True, True, False]
    assert lease.objects[2] is not None, "L1 has it"
    assert held(harness) == 2


def test_single_objects_are_released(harness: StorageHarness) -> None:
    stored(harness, 3)
    lease = harness.storage.lease_reads("peer", KEYS[:3], 15, ALL)
    lease.release([1])
    lease.release([1, 1])
    assert [each is None for each in lease.objects] == [False, True, False]
    assert (held(harness), lease.size_bytes) == (2, 2 * SLOT)
    lease.end()
    assert held(harness) == 0


def test_an_object_that_was_named_twice_is_released_twice(harness: StorageHarness) -> None:
    stored(harness, 1)
    lease = harness.storage.lease_reads("peer", [KEYS[0], KEYS[0]], 15, ALL)
    lease.release([0])
    assert (held(harness), lease.size_bytes) == (1, SLOT)
    lease.release([1])
    assert (held(harness), lease.size_bytes) == (0, 0)


def test_a_lease_is_a_use_for_the_eviction_policy(harness: StorageHarness) -> None:
    stored(harness, 2)
    harness.cache.take_access_log()
    harness.storage.lease_reads("peer", KEYS[:2], 15, ALL)
    assert harness.cache.take_access_log()
