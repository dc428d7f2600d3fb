"""The stretch that is handed over costs the fewest objects, and none that is referenced if there is another choice."""

from __future__ import annotations

from core.tests.l1.test_allocator import carve
from lmcache_core.l1.allocator import Allocator
from lmcache_core.l1.slab_moves import choose, windows

ARENA = 1 << 20
SLAB = ARENA // 8
SLOT = SLAB // 4


def full() -> tuple[Allocator, list[list[int]]]:
    """An arena of eight slabs of four slots, all taken; the slots of each slab in the order of addresses."""
    slots = Allocator(ARENA)
    taken = sorted(carve(slots, SLOT, 32), key=slots.offset)
    return slots, [taken[begin : begin + 4] for begin in range(0, 32, 4)]


def test_the_emptiest_slab_goes_first() -> None:
    slots, slabs = full()
    for slot in slabs[5][:3]:
        slots.free(slot)
    slots.free(slabs[2][0])
    order = [slots.offset(window.slabs[0].first_slot) // SLAB for window in windows(*slots.pieces(), SLOT // 2)]
    assert order[:2] == [5, 2]


def test_a_slot_of_several_slabs_gets_neighbours() -> None:
    slots, slabs = full()
    for slot in slabs[4] + slabs[6]:
        slots.free(slot)
    found = windows(*slots.pieces(), 3 * SLAB)[0]
    assert (found.extent.offset, found.extent.length, found.occupied_bytes) == (4 * SLAB, 3 * SLAB, SLAB)


def test_room_beside_a_slab_counts() -> None:
    slots = Allocator(ARENA)
    for _ in range(8):
        carve(slots, 40960, 3)  # three to a slab of 120 KiB; 64 KiB are left at the end
    ends = [window for window in windows(*slots.pieces(), 184 << 10) if window.extent.end == ARENA]
    assert min(len(window.slabs) for window in ends) == 1


def test_room_that_needs_no_move_is_not_part_of_one() -> None:
    slots = Allocator(ARENA)
    carve(slots, SLOT, 4)
    (window,) = windows(*slots.pieces(), SLOT // 2)
    assert window.extent.length == SLAB


def test_slabs_of_the_target_class_do_not_move() -> None:
    slots, _ = full()
    assert windows(*slots.pieces(), SLOT) == []


def test_what_is_held_is_the_last_choice() -> None:
    slots, slabs = full()
    for slot in slabs[1][:2]:
        slots.free(slot)  # the cheapest one, but the other half of it is held
    stuck = {*slabs[1], slabs[0][0]}
    candidates = windows(*slots.pieces(), SLOT * 2)
    chosen = choose(candidates, 6 * SLAB, lambda slot: slot not in stuck)
    assert [window.slabs[0].slots[0] not in (slabs[0][0], slabs[1][0]) for window in chosen] == [True] * 6
    chosen = choose(candidates, 7 * SLAB, lambda slot: slot not in stuck)
    assert len(chosen) == 7
    assert slabs[0][0] in chosen[-1].slabs[0].slots, "one held slot is better than two"
    assert len(choose(candidates, 100 * SLAB, lambda slot: slot not in slabs[1][:2])) == 8


def test_a_large_arena_is_looked_at_where_it_is_emptiest() -> None:
    slots = Allocator(4096 * 64 << 20)
    taken = sorted(carve(slots, 32 << 20, 4096 * 2), key=slots.offset)
    for slot in (*taken[2001:2004], *taken[6002:6004]):
        slots.free(slot)
    found = windows(*slots.pieces(), 20 << 20)
    assert len(found) < 1100
    assert [window.extent.offset // (64 << 20) for window in found[:2]] == [1001, 3001]
    assert windows(*slots.pieces(), 150 << 20)[0].extent.offset // (64 << 20) in (999, 1000, 1001)
