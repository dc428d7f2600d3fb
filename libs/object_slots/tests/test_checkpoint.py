"""A checkpoint says what the index says, or nothing."""

from __future__ import annotations

import errno
from array import array
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.object_slots.tests.simulated import SLOT_BYTES, Disk, DiskRegion, KilledError, geometry_of
from lmcache_core import ConfigError
from lmcache_object_slots import SlotGeometry, SlotIndex, meta_bytes_for
from lmcache_object_slots.checkpoint import Checkpoints
from lmcache_object_slots.slot_index import Bucket
from lmcache_object_slots.slot_state import SlotState

SLOTS = 300

objects = st.dictionaries(st.binary(min_size=16, max_size=16), st.integers(4097, 2**32 - 1), max_size=40)


def filled(stored: dict[bytes, int]) -> SlotIndex:
    index = SlotIndex(SLOTS)
    for slot, (object_id, length) in enumerate(stored.items()):
        index.take(slot * 7 % SLOTS)
        index.commit(object_id, slot * 7 % SLOTS, length)
    return index


def content(index: SlotIndex) -> dict[bytes, tuple[int, int]]:
    places = {object_id: index.find(object_id) for object_id, _ in index.page(b"", SLOTS)}
    return {object_id: place[:2] for object_id, place in places.items() if place is not None}


def loaded(disk: Disk, epoch: int = 1) -> dict[bytes, tuple[int, int]] | None:
    """What a start finds."""
    found = Checkpoints(DiskRegion(disk), disk.geometry).load(epoch)
    if found is None:
        return None
    index = SlotIndex(SLOTS)
    assert sum(index.load(bucket, SlotState.HELD, SLOTS) for bucket in found.buckets()) == 0
    assert len(index) == found.objects
    return content(index)


@settings(max_examples=60, deadline=None)
@given(objects)
def test_what_was_written_is_what_is_loaded(stored: dict[bytes, int]) -> None:
    disk, index = Disk(geometry_of(SLOTS)), filled(stored)
    assert Checkpoints(DiskRegion(disk), disk.geometry).write(index, 1, exact=False) == len(stored)
    assert loaded(disk) == content(index)


@settings(max_examples=60, deadline=None)
@given(objects, objects, st.integers(0, 3), st.floats(0, 1))
def test_one_that_is_torn_leaves_the_one_before(
    stored: dict[bytes, int], more: dict[bytes, int], writes: int, share: float
) -> None:
    disk = Disk(geometry_of(SLOTS))
    checkpoints = Checkpoints(DiskRegion(disk), disk.geometry)
    checkpoints.write(filled(stored), 1, exact=False)
    disk.writes_left, disk.torn_share = writes, share
    try:
        checkpoints.write(filled(more), 1, exact=False)
    except KilledError:
        disk.revive()
        assert loaded(disk) in (content(filled(stored)), content(filled(more)))
    else:
        assert loaded(disk) == content(filled(more))


@settings(max_examples=60, deadline=None)
@given(objects, st.integers(0, 10**6))
def test_a_changed_bit_anywhere_is_found(stored: dict[bytes, int], where: int) -> None:
    disk = Disk(geometry_of(SLOTS))
    Checkpoints(DiskRegion(disk), disk.geometry).write(filled(stored), 1, exact=True)
    disk.bytes[where % len(disk.bytes)] ^= 0x20
    assert loaded(disk) in (None, content(filled(stored)))


class Churned(SlotIndex):
    """Slots change hands while it is written: objects that have gone are in it beside those that came in their place."""

    def buckets(self) -> Iterator[Bucket]:
        for number in range(40):
            slots = array("I", range(100))
            yield Bucket(b"".join(bytes([number, slot]) * 8 for slot in slots), slots, array("I", [5000] * 100))


def test_one_with_more_objects_than_slots_stays_in_its_place() -> None:
    disk = Disk(geometry_of(SLOTS))
    slots = bytes([0xAB]) * (len(disk.bytes) - disk.geometry.meta_bytes)
    disk.bytes[disk.geometry.meta_bytes :] = slots
    checkpoints = Checkpoints(DiskRegion(disk), disk.geometry)
    for epoch in (1, 2):  # one in each place
        written = checkpoints.write(Churned(SLOTS), epoch, exact=False)
        found = Checkpoints(DiskRegion(disk), disk.geometry).load(epoch)
        assert found is not None
        assert SLOTS <= found.objects == written < 40 * 100
        assert sum(len(bucket.slots) for bucket in found.buckets()) == found.objects
    assert disk.bytes[disk.geometry.meta_bytes :] == slots


class BadSectors(DiskRegion):
    """A `MetaRegion` that cannot be read where one begins."""

    def __init__(self, disk: Disk, *starts: int) -> None:
        super().__init__(disk)
        self._starts = starts

    def read(self, offset: int, length: int) -> bytes:
        if any(offset <= start < offset + length for start in self._starts):
            raise OSError(errno.EIO, "a bad sector")
        return super().read(offset, length)


def test_one_that_cannot_be_read_is_none() -> None:
    disk = Disk(geometry_of(SLOTS))
    checkpoints = Checkpoints(DiskRegion(disk), disk.geometry)
    checkpoints.write(filled({b"a" * 16: 5000}), 1, exact=False)
    checkpoints.write(filled({b"b" * 16: 5000, b"c" * 16: 5000}), 1, exact=False)
    first = 4 * 4096
    second = first + (disk.geometry.meta_bytes - first) // 2
    for broken, objects_found in (((second,), 1), ((second + 4096,), 1), ((first,), 2), ((first, second), None)):
        found = Checkpoints(BadSectors(disk, *broken), disk.geometry).load(1)
        assert (found.objects if found else None) == objects_found


def test_it_is_exact_only_in_its_own_epoch() -> None:
    disk = Disk(geometry_of(SLOTS))
    Checkpoints(DiskRegion(disk), disk.geometry).write(filled({}), 3, exact=True)
    found = [Checkpoints(DiskRegion(disk), disk.geometry).load(epoch) for epoch in (2, 3, 4)]
    assert [one is not None and one.exact for one in found] == [False, True, False]


def test_a_slot_that_is_claimed_twice_has_one_object() -> None:
    disk, index = Disk(geometry_of(SLOTS)), filled({bytes([n]) * 16: 5000 for n in range(9)})
    Checkpoints(DiskRegion(disk), disk.geometry).write(index, 1, exact=False)
    found = Checkpoints(DiskRegion(disk), disk.geometry).load(1)
    assert found is not None
    again = SlotIndex(SLOTS, SlotState.UNKNOWN)
    again.take(7)
    again.commit(b"another claimant", 7, 4500)
    assert sum(again.load(bucket, SlotState.DOUBTED, SLOTS) for bucket in found.buckets()) == 1
    assert again.totals() == (8 * 5000 + 4500, 9)
    assert again.claimant(7) == b"another claimant"


def test_metadata_that_are_too_small_say_how_much_is_needed() -> None:
    least = meta_bytes_for(SLOTS)
    Checkpoints(DiskRegion(Disk(geometry_of(SLOTS))), SlotGeometry(SLOT_BYTES, SLOTS, meta_bytes=least))
    tight = SlotGeometry(SLOT_BYTES, SLOTS, meta_bytes=least - 4096)
    with pytest.raises(ConfigError, match=f"too small for two checkpoints of {SLOTS} slots; give it {least} or more"):
        Checkpoints(DiskRegion(Disk(tight)), tight)
