"""Slab slots never overlap, never leave the arena, and come back."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lmcache_core.l1.slots import SLAB_BYTES, Slots

ARENA = 1 << 20
SIZES = (4096, 8192, 36864, 131072)


def carve(slots: Slots, slot_bytes: int, count: int) -> list[int]:
    """Take `count` slots as the cache does: carve while there is room."""
    while slots.available(slot_bytes) < count:
        extent = slots.claim_extent(slot_bytes, count - slots.available(slot_bytes))
        if extent is None:
            break
        slots.add_slab(slot_bytes, extent)
    return slots.take(slot_bytes, count)


class SlotsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.slots = Slots(ARENA)
        self.taken: dict[int, int] = {}

    @rule(slot_bytes=st.sampled_from(SIZES), count=st.integers(1, 40))
    def take(self, slot_bytes: int, count: int) -> None:
        got = carve(self.slots, slot_bytes, count)
        assert len(got) <= count
        for slot in got:
            assert slot not in self.taken
            self.taken[slot] = slot_bytes

    @rule(data=st.data())
    def give(self, data: st.DataObject) -> None:
        if self.taken:
            slot = data.draw(st.sampled_from(sorted(self.taken)))
            del self.taken[slot]
            self.slots.give(slot)

    @rule()
    def give_everything(self) -> None:
        for slot in self.taken:
            self.slots.give(slot)
        self.taken.clear()

    @invariant()
    def extents_do_not_overlap(self) -> None:
        spans = sorted((self.slots.offset(slot), size) for slot, size in self.taken.items())
        for (offset, size), (following, _) in itertools.pairwise(spans):
            assert offset + size <= following
        if spans:
            assert spans[0][0] >= 0
            assert spans[-1][0] + spans[-1][1] <= ARENA

    @invariant()
    def counts_agree(self) -> None:
        assert self.slots.free_slots + len(self.taken) == self.slots.total
        assert self.slots.carved_bytes <= ARENA
        for slot, size in self.taken.items():
            assert self.slots.slot_bytes(slot) == size
            assert self.slots.offset(slot) % 4096 == 0


SlotsMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestSlots = SlotsMachine.TestCase


def test_an_arena_serves_one_size_without_waste() -> None:
    slots = Slots(ARENA)
    assert len(carve(slots, 36864, 1000)) == ARENA // 36864


def test_a_size_that_has_gone_leaves_its_room_to_another() -> None:
    slots = Slots(ARENA)
    for _ in range(50):
        for size in SIZES:
            taken = carve(slots, size, ARENA // size)
            assert len(taken) == ARENA // size
            for slot in taken:
                slots.give(slot)
    assert len(slots) <= 2 * (ARENA // SIZES[0]), "slot numbers are not used again"


def test_slots_larger_than_a_slab_get_a_slab_of_their_own() -> None:
    slots = Slots(1 << 30)
    assert len(carve(slots, SLAB_BYTES * 2, 3)) == 3


def test_what_is_larger_than_the_arena_is_refused() -> None:
    assert carve(Slots(ARENA), ARENA + 4096, 1) == []


def test_slots_come_back_in_the_order_of_their_addresses() -> None:
    slots = Slots(ARENA)
    offsets = [slots.offset(slot) for slot in carve(slots, 4096, 16)]
    assert offsets == sorted(offsets)


@pytest.mark.parametrize("size", SIZES)
def test_neighbours_are_slabs_of_other_sizes(size: int) -> None:
    slots = Slots(ARENA)
    for other in SIZES:
        carve(slots, other, 1)
    found = Counter(slots.slot_bytes(numbers[0]) for window in slots.neighbours(size) for numbers in window)
    assert size not in found
    assert found
