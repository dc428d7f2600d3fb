"""Which object is in which slot, and how much memory that takes."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmcache_object_slots import SlotIndex
from lmcache_object_slots.slot_state import Place, SlotState

LENGTH = 5000


def name(number: int) -> bytes:
    return number.to_bytes(2, "big") * 8


def stored(index: SlotIndex, number: int) -> int:
    place = index.reserve()
    assert place is not None
    assert index.commit(name(number), place.slot, LENGTH) is None
    return place.slot


def test_slots_are_given_out_once_and_again_when_they_are_free() -> None:
    index = SlotIndex(3)
    slots = [stored(index, number) for number in range(3)]
    assert sorted(slots) == [0, 1, 2]
    assert index.reserve() is None
    assert index.withdraw(name(1)) == slots[1]
    assert index.reserve() is None, "it is not cleared yet"
    index.free(slots[1])
    assert stored(index, 7) == slots[1]
    assert index.find(name(1)) is None
    assert index.find(name(7)) == Place(slots[1], LENGTH, sure=True)


def test_a_slot_that_may_not_be_blank_says_so() -> None:
    index = SlotIndex(1)
    first = index.reserve()
    assert first is not None
    assert first.blank
    index.soil(first.slot)
    again = index.reserve()
    assert again is not None
    assert not again.blank


def test_a_slot_that_is_read_is_not_given_out() -> None:
    index = SlotIndex(1)
    slot = stored(index, 0)
    for _ in range(2):
        index.begin_reading(slot)
    index.withdraw(name(0))
    index.free(slot)
    index.end_reading(slot)
    assert index.reserve() is None
    index.end_reading(slot)
    assert index.reserve() is not None


def test_a_slot_that_is_taken_is_not_what_it_was_to_become_when_a_reader_left() -> None:
    index = SlotIndex(1, SlotState.UNKNOWN)
    index.take(0)
    index.commit(name(0), 0, LENGTH)
    index.begin_reading(0)
    index.withdraw(name(0))
    index.unknow(0)
    index.take(0)  # the recovery has found another object in it
    index.commit(name(1), 0, LENGTH)
    index.end_reading(0)
    assert index.find(name(1)) == Place(0, LENGTH, sure=True)


def test_what_comes_to_a_second_slot_leaves_the_first() -> None:
    index = SlotIndex(2)
    slot = stored(index, 0)
    other = index.reserve()
    assert other is not None
    assert index.commit(name(0), other.slot, 6000) == slot
    assert index.totals() == (6000, 1)
    assert index.state(slot) is SlotState.BUSY


@settings(max_examples=50, deadline=None)
@given(st.sets(st.integers(0, 65_535), max_size=80), st.integers(1, 9))
def test_a_listing_names_all_in_the_order_of_their_ids(numbers: set[int], limit: int) -> None:
    index = SlotIndex(100)
    for number in numbers:
        stored(index, number)
    listed: list[bytes] = []
    while page := index.page(listed[-1] if listed else b"", limit):
        assert len(page) <= limit
        listed += [object_id for object_id, _ in page]
    assert listed == sorted(map(name, numbers))


MEMORY = """
import gc, hashlib
from lmcache_object_slots import SlotIndex
from lmcache_object_slots.slot_state import SlotState

def resident():
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * 4096

count = 1_000_000
before = resident()
index = SlotIndex(count, SlotState.UNKNOWN)
for slot in range(count):
    index.take(slot)
    index.commit(hashlib.blake2b(slot.to_bytes(8, "little"), digest_size=16).digest(), slot, 5000)
recovering = resident()
index.settle()
print((recovering - before) / count, (resident() - before) / count)
"""


@pytest.mark.slow
def test_a_million_objects_take_less_than_200_bytes_each() -> None:
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    recovering, settled = map(float, done.stdout.split())
    print(f"\nbytes for each object: {recovering:.0f} while they are recovered, {settled:.0f} afterwards")
    assert settled <= recovering < 200
