"""What is seen of single slots, and dropping single objects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from lmcache_core.contracts.cache_control import SlotUse
from lmcache_core.kernels.choice import Kernels
from lmcache_core.l1.arena import anonymous_arena
from lmcache_core.l1.cache import L1Cache
from lmcache_core.l1.index import Removed, SpaceRecord
from lmcache_core.l1.leases import Lease, Owner, OwnerKind
from lmcache_core.model.keys import HashChain, KeySpace
from lmcache_core.model.object_header import HEADER_BYTES
from lmcache_devkit.l1_audit import audit

PAYLOAD = 8192
SLOT = HEADER_BYTES + PAYLOAD
WORKER = Owner(OwnerKind.WORKER, 7)
SPACE = KeySpace("m", 1, 0, "", 16, HashChain.BLAKE3, bytes(16))


def hashes(*numbers: int) -> list[bytes]:
    return [number.to_bytes(32, "big") for number in numbers]


@pytest.fixture
def cache(kernels: Kernels) -> Iterator[L1Cache]:
    arena = anonymous_arena(SLOT * 64)
    cache = L1Cache(arena, 4096, kernels)
    yield cache
    audit(cache)
    assert cache.contents.state_counts().is_balanced
    arena.close()


@pytest.fixture
def record(cache: L1Cache) -> SpaceRecord:
    return cache.intern(SPACE, PAYLOAD)


def store(cache: L1Cache, record: SpaceRecord, *numbers: int) -> None:
    lease, _ = cache.reserve(WORKER, record, hashes(*numbers), None)
    assert cache.publish(lease, list(lease.slots))


def hold(cache: L1Cache, record: SpaceRecord, *numbers: int) -> Lease:
    lease = cache.leases.open(WORKER, None)
    assert -1 not in cache.leases.acquire(lease, record, hashes(*numbers))
    return lease


def uses(cache: L1Cache) -> dict[int, SlotUse]:
    views = cache.contents.views(0, cache.contents.slot_numbers)
    assert all(view.key.space == SPACE for view in views)
    assert {(view.payload_bytes, view.slot_bytes) for view in views} <= {(PAYLOAD, SLOT)}
    return {int.from_bytes(view.key.chunk_hash, "big"): view.state for view in views}


def found(cache: L1Cache, record: SpaceRecord, *numbers: int) -> Sequence[bool]:
    lease = cache.leases.open(WORKER, None)
    there = [slot >= 0 for slot in cache.leases.acquire(lease, record, hashes(*numbers))]
    cache.leases.end(lease)
    return there


def test_every_slot_in_use_is_seen_as_what_it_is(cache: L1Cache, record: SpaceRecord) -> None:
    store(cache, record, 1, 2, 3)
    reader = hold(cache, record, 2, 3)
    writer, _ = cache.reserve(WORKER, record, hashes(4), None)
    late, _ = cache.reserve(WORKER, record, hashes(5), None)
    cache.leases.quarantine(late)
    assert cache.contents.drop(SPACE, hashes(3), force=True).dropped == 1
    assert uses(cache) == {
        1: "cached",
        2: "held",
        3: "leaving",
        4: "writing",
        5: "leaving",
    }
    for lease in (reader, writer, late):
        cache.leases.end(lease)
    assert uses(cache) == {1: "cached", 2: "cached"}


def test_a_slice_shows_its_own_slots(cache: L1Cache, record: SpaceRecord) -> None:
    store(cache, record, *range(10))
    end = cache.contents.slot_numbers
    slices = [view.slot for begin in range(0, end, 7) for view in cache.contents.views(begin, begin + 7)]
    assert slices == [view.slot for view in cache.contents.views(0, end)]
    assert len(slices) == 10
    assert cache.contents.views(end, end + 100) == []


def test_what_has_no_references_is_dropped_and_the_rest_stays(cache: L1Cache, record: SpaceRecord) -> None:
    store(cache, record, 1, 2, 3)
    reader = hold(cache, record, 2, 2)
    dropped = cache.contents.drop(SPACE, hashes(1, 1, 2, 9), force=False)
    assert (dropped.dropped, dropped.held, list(dropped.leaving)) == (1, 1, [])
    assert found(cache, record, 1, 2, 3) == [False, True, True]
    assert len(reader.slots) == 2
    cache.leases.end(reader)
    assert (cache.contents.state_counts().cached, cache.contents.state_counts().held) == (2, 0)


def test_by_force_what_is_held_is_found_no_more_and_leaves_with_its_last_hold(
    cache: L1Cache, record: SpaceRecord
) -> None:
    store(cache, record, 1, 2)
    reader = hold(cache, record, 2)
    cache.take_access_log()
    dropped = cache.contents.drop(SPACE, hashes(1, 2), force=True)
    assert (dropped.dropped, dropped.held, list(dropped.leaving)) == (2, 0, list(reader.slots))
    assert found(cache, record, 1, 2) == [False, False]
    assert (cache.contents.state_counts().cached, cache.contents.state_counts().held) == (0, 1)
    removed = [slot for note in cache.take_access_log() if isinstance(note, Removed) for slot in note.slots]
    assert len(set(removed)) == 2, "the policy is notified of both at once"
    store(cache, record, 2)  # another object under the same key has another slot
    assert found(cache, record, 2) == [True]
    cache.leases.end(reader)
    assert (cache.contents.state_counts().cached, cache.contents.state_counts().held) == (1, 0)


def test_what_is_not_there_cannot_be_dropped(cache: L1Cache, record: SpaceRecord) -> None:
    writer, _ = cache.reserve(WORKER, record, hashes(1), None)
    other_space = KeySpace("other", 1, 0, "", 16, HashChain.BLAKE3, bytes(16))
    for space in (SPACE, other_space):
        dropped = cache.contents.drop(space, hashes(1), force=True)
        assert (dropped.dropped, dropped.held, list(dropped.leaving)) == (0, 0, [])
    assert cache.publish(writer, list(writer.slots))
    assert found(cache, record, 1) == [True]
