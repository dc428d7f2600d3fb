"""Slab slots never overlap, never leave the arena, and come back."""

from __future__ import annotations

import itertools

from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lmcache_client.extents import Extent
from lmcache_core.l1.allocator import SLAB_BYTES, AllocationWait, Allocator
from lmcache_core.l1.slab_moves import windows

ARENA = 1 << 20
SIZES = (4096, 8192, 36864, 131072)


def carve(slots: Allocator, slot_bytes: int, count: int) -> list[int]:
    """Take `count` slots as the cache does: carve while there is room."""
    while slots.available(slot_bytes) < count:
        extent = slots.claim_extent(slot_bytes)
        if extent is None:
            break
        slots.add_slab(slot_bytes, extent)
    return slots.allocate(slot_bytes, count)


def move_cheapest(slots: Allocator, to: int) -> bool:
    """Hand over the stretch with the fewest occupied bytes.  False when there is none."""
    candidates = windows(*slots.pieces(), to)
    return bool(candidates) and slots.begin_move(candidates[0].extent, candidates[0].slabs, to) is not None


class SlotsMachine(RuleBasedStateMachine):
    """Sizes that do not divide each other take, free and move slabs.  What the arena holds is known exactly."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = Allocator(ARENA)
        self.taken: dict[int, tuple[int, int]] = {}
        """Size and offset by slot number."""
        self.claims: list[tuple[int, Extent]] = []

    @rule(slot_bytes=st.sampled_from(SIZES), count=st.integers(1, 40))
    def take(self, slot_bytes: int, count: int) -> None:
        before = self.slots.available(slot_bytes)
        got = carve(self.slots, slot_bytes, count)
        assert min(before, count) <= len(got) <= count
        for slot in got:
            assert slot not in self.taken
            self.taken[slot] = (slot_bytes, self.slots.offset(slot))

    @rule(slot_bytes=st.sampled_from(SIZES))
    def claim(self, slot_bytes: int) -> None:
        """Pages are being allocated, without the lock."""
        if (extent := self.slots.claim_extent(slot_bytes)) is not None:
            self.claims.append((slot_bytes, extent))

    @rule(has_pages=st.booleans())
    def settle_claim(self, has_pages: bool) -> None:
        assume(self.claims)
        slot_bytes, extent = self.claims.pop()
        if has_pages:
            self.slots.add_slab(slot_bytes, extent)
        else:
            self.slots.return_extent(extent)

    @rule(data=st.data(), share=st.floats(0, 1))
    def give(self, data: st.DataObject, share: float) -> None:
        order = data.draw(st.permutations(sorted(self.taken)))
        for slot in order[: int(share * len(order))]:
            del self.taken[slot]
            self.slots.free(slot)

    @rule(to=st.sampled_from(SIZES))
    def move(self, to: int) -> None:
        slots = self.slots
        candidates = windows(*slots.pieces(), to)
        assume(candidates)
        window, available = candidates[0], slots.available(to)
        sure = [slab.extent.length // to for slab in window.slabs if not window.occupied_bytes]
        assert slots.begin_move(window.extent, window.slabs, to)
        assert slots.available(to) - available >= sum(sure)
        assert slots.begin_move(window.extent, window.slabs, to) is None, "twice"

    @rule()
    def give_everything(self) -> None:
        for slot in self.taken:
            self.slots.free(slot)
        self.taken.clear()
        for size in SIZES:
            assert not self.slots.moves_to(size)

    @invariant()
    def nothing_overlaps(self) -> None:
        slabs, room = self.slots.pieces()
        spans = [slab.extent for slab in slabs if slab] + room + [extent for _, extent in self.claims]
        for slab in filter(None, slabs):
            if slab.move and slab is slab.move.slabs[0]:
                spans += slab.move.gaps
        spans.sort()
        for span, following in itertools.pairwise(spans):
            assert span.end <= following.offset
        assert sum(span.length for span in spans) == ARENA, "bytes were lost"
        for slot, (size, offset) in self.taken.items():
            assert (self.slots.slot_bytes(slot), self.slots.offset(slot)) == (size, offset)
            (slab,) = [slab for slab in slabs if slab and slot in slab.slots]
            assert slab.extent.offset <= offset <= slab.extent.end - size

    @invariant()
    def counts_agree(self) -> None:
        slots = self.slots
        slabs = [slab for slab in slots.pieces()[0] if slab]
        assert slots.total == sum(slab.count for slab in slabs)
        assert slots.free_slots + len(self.taken) == slots.total
        assert slots.free_bytes == sum(len(slab.free) * slab.slot_bytes for slab in slabs)
        assert slots.carved_bytes == sum(slab.extent.length for slab in slabs)
        for size in SIZES:
            open_slabs = [slab for slab in slabs if slab.slot_bytes == size and not slab.move]
            assert slots.available(size) == sum(len(slab.free) for slab in open_slabs)
            assert slots.has_other_sizes(size) == any(slab.slot_bytes != size for slab in slabs)
        for slab in slabs:
            assert slab.slots.stop <= len(slots)
            assert not set(slab.free) & set(self.taken)
            assert set(slab.free) <= set(slab.slots)


SlotsMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=50, deadline=None)
TestSlots = SlotsMachine.TestCase


def test_an_arena_serves_one_size_without_waste() -> None:
    slots = Allocator(ARENA)
    assert len(carve(slots, 36864, 1000)) == ARENA // 36864
    assert len([slab for slab in slots.pieces()[0] if slab]) > 8, "one large slab could only move as a whole"


def test_a_size_that_has_gone_leaves_its_room_to_another() -> None:
    slots = Allocator(ARENA)
    for _ in range(50):
        for size in SIZES:
            taken = carve(slots, size, ARENA // size)
            assert len(taken) == ARENA // size
            for slot in taken:
                slots.free(slot)
    assert len(slots) <= 2 * (ARENA // SIZES[0]), "slot numbers are not used again"


def test_slots_larger_than_a_slab_get_a_slab_of_their_own() -> None:
    slots = Allocator(1 << 30)
    assert len(carve(slots, SLAB_BYTES * 2, 3)) == 3


def test_what_is_larger_than_the_arena_is_refused() -> None:
    assert carve(Allocator(ARENA), ARENA + 4096, 1) == []


def test_slots_come_back_in_the_order_of_their_addresses() -> None:
    slots = Allocator(ARENA)
    offsets = [slots.offset(slot) for slot in carve(slots, 4096, 16)]
    assert offsets == sorted(offsets)


def test_a_stretch_with_a_referenced_slot_moves_when_it_is_released() -> None:
    slots = Allocator(ARENA)
    held, *others = carve(slots, 8192, ARENA // 8192)
    for slot in others:
        slots.free(slot)
    (slab,) = [slab for slab in slots.pieces()[0] if slab and held in slab.slots]
    before = slots.available(8192)
    assert slots.begin_move(slab.extent, [slab], 36864)
    assert slots.available(8192) == before - (slab.count - 1), "a slab that moves gives nothing out"
    assert not set(slots.allocate(8192, ARENA)) & set(slab.slots)
    assert slots.available(36864) == 0
    assert [move.extent for move in slots.moves_to(36864)] == [slab.extent]
    slots.free(held)
    assert slots.available(36864) == slab.extent.length // 36864
    assert not slots.moves_to(36864)


def test_neighbours_join_for_a_size_that_none_of_them_could_hold() -> None:
    slots = Allocator(ARENA)
    taken = carve(slots, 65536, 16)
    assert not slots.available(65536)
    for slot in sorted(taken, key=slots.offset)[2:6]:
        slots.free(slot)
    assert move_cheapest(slots, 196608)
    assert len(slots.allocate(196608, 2)) == 1


def test_waiting_stores_are_notified_of_freed_slots_and_of_new_slabs() -> None:
    slots = Allocator(ARENA)
    taken = carve(slots, 131072, 8)
    wait, other = AllocationWait(131072, 2), AllocationWait(4096, 10)
    slots.waits.add(131072, wait)
    slots.waits.add(4096, other)
    slots.free(taken[0])
    assert not wait.event.is_set()
    slots.free(taken[1])
    assert wait.event.is_set()
    assert not other.event.is_set()
    assert move_cheapest(slots, 4096)
    assert other.event.is_set()
    slots.waits.remove(131072, wait)
    slots.waits.remove(4096, other)
    assert not slots.waits.by_key
    slots.waits.cancel()
    late = AllocationWait(4096, 1000)
    slots.waits.add(4096, late)
    assert late.event.is_set(), "no store waits while the server stops"
    assert late.cancelled


def test_a_move_makes_no_slots_of_room_that_never_had_pages() -> None:
    slots = Allocator(ARENA)
    (slot,) = carve(slots, 8192, 1)
    (slab,) = [slab for slab in slots.pieces()[0] if slab]
    slots.free(slot)
    assert slots.begin_move(slab.extent, [slab], 36864)
    assert slots.available(36864) == slab.extent.length // 36864
