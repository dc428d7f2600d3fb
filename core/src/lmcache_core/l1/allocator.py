"""The slab allocator: where in the arena an object lies.

A slab is a contiguous run of slots of one size.  It is carved out of the arena when a size first needs one.  An empty slab
is returned to free space when another size needs it, and `begin_move` moves a stretch of slabs to another size: no more of
its slots are allocated, and when the last one is freed the stretch belongs to the target size.  A slot is a small integer.
What is known of a slot lies in flat arrays: 12 bytes for each, which the garbage collector does not walk.  Allocating and
freeing a slot are O(1).

Not synchronised: the caller holds the cache's lock.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Generic, TypeVar

from lmcache_client.extents import Extent, Extents

SLAB_BYTES = 64 << 20
"""Approximate size of a slab: large enough that carving is rare, small enough that a size does not hoard."""
_SLABS_PER_ARENA = 8
"""A small arena has space for at least this many slabs."""
_RETURNED_AT_ONCE = 256
"""Empty slabs returned to free space in one step; each takes some microseconds under the cache's lock."""

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True, eq=False)
class Slab:
    """`count` slots of `slot_bytes` at `extent`, numbered from `first_slot`.  Only the allocator changes it; others may read
    it without a lock, and see `free` a little late."""

    number: int
    extent: Extent
    slot_bytes: int
    first_slot: int
    count: int
    free: array[int]
    """Slot numbers, the next to be allocated at the end."""
    move: SlabMove | None = None

    @property
    def slots(self) -> range:
        return range(self.first_slot, self.first_slot + self.count)

    @property
    def occupied(self) -> int:
        """Slots that are not free."""
        return self.count - len(self.free)


@dataclass(slots=True, eq=False)
class SlabMove:
    """A stretch that moves to another size.  None of its slots is allocated; when the last one is freed, the whole stretch
    becomes slabs of `target_bytes` at once, so that no other request can take it first."""

    target_bytes: int
    slabs: list[Slab]
    extent: Extent
    occupied: int
    """Slots in it that are not free yet."""
    gaps: list[Extent] = field(default_factory=list)
    """Free space between the slabs."""


@dataclass(slots=True)
class SizeClass:
    """The slabs of one slot size."""

    available: int = 0
    """Slots that can be allocated: free, and not in a slab that moves."""
    carved_bytes: int = 0
    open: dict[int, Slab] = field(default_factory=dict)
    """Slabs with such slots, by number; the one that was opened last is used first."""


@dataclass(slots=True, eq=False)
class AllocationWait:
    """A store that waits for `wanted` slots of `slot_bytes`.  `event` is set when free space allows it, or when waits are
    cancelled."""

    slot_bytes: int
    wanted: int
    salt: str | None = None
    """Set: it waits until this salt is below its limit.  None: it waits for free slots."""
    event: Event = field(default_factory=Event)
    cancelled: bool = False
    """The server stops: waiting is pointless."""


class WaitQueue(Generic[K]):
    """Waits by key.  Empty while no store waits, which callers check before they notify."""

    def __init__(self) -> None:
        self.by_key: dict[K, list[AllocationWait]] = {}
        self._cancelled = False

    def __len__(self) -> int:
        """Needs no lock."""
        return sum(map(len, list(self.by_key.values())))

    def add(self, key: K, wait: AllocationWait) -> None:
        self.by_key.setdefault(key, []).append(wait)
        if self._cancelled:
            self._cancel(wait)

    def remove(self, key: K, wait: AllocationWait) -> None:
        waits = self.by_key[key]
        waits.remove(wait)
        if not waits:
            del self.by_key[key]

    def cancel(self) -> None:
        """Wake all waiting stores; later ones are cancelled at once."""
        self._cancelled = True
        for waits in self.by_key.values():
            for wait in waits:
                self._cancel(wait)

    @staticmethod
    def _cancel(wait: AllocationWait) -> None:
        wait.cancelled = True
        wait.event.set()


class Allocator:
    """The slots of one arena of `arena_bytes`."""

    def __init__(self, arena_bytes: int) -> None:
        self.slab_bytes = max(1, min(SLAB_BYTES, arena_bytes // _SLABS_PER_ARENA))
        self._free_space = Extents()
        self._free_space.add(Extent(0, arena_bytes))
        self._backed = Extents()
        """Space that has been a slab before: it has pages."""
        self._sizes: dict[int, SizeClass] = {}
        self._slabs: list[Slab | None] = []
        self._spare_slabs: list[int] = []
        self._empty: dict[int, Slab] = {}
        """Slabs without an occupied slot, by number."""
        self._moves: dict[int, list[SlabMove]] = {}
        """Moves in progress, by target size."""
        self._slab_of = array("I")
        self._offsets = array("Q")
        self._spare_numbers = Extents()
        """Slot numbers whose slabs are gone."""
        self.waits: WaitQueue[int] = WaitQueue()
        """Stores that wait for free slots, by slot size."""
        self.total = 0
        """Slots that exist now."""
        self.free_slots = 0
        self.free_bytes = 0
        self.carved_bytes = 0

    def __len__(self) -> int:
        """Slot numbers in use so far; arrays indexed by slot need this length."""
        return len(self._slab_of)

    def offset(self, slot: int) -> int:
        """Byte offset of the slot in the arena."""
        return self._offsets[slot]

    def find_slab(self, slot: int) -> Slab | None:
        """The slab that the slot is in; None when there is no such slot now."""
        slab = self._slabs[self._slab_of[slot]]
        return slab if slab is not None and slot in slab.slots else None

    def _slab(self, slot: int) -> Slab:
        slab = self._slabs[self._slab_of[slot]]
        assert slab is not None, f"slot {slot} has no slab"
        return slab

    def slot_bytes(self, slot: int) -> int:
        return self._slab(slot).slot_bytes

    # --- slots

    def allocate(self, slot_bytes: int, count: int) -> list[int]:
        """Up to `count` free slots of this size; fewer when the carved slabs have no more."""
        taken: list[int] = []
        size = self._sizes.get(slot_bytes)
        while size is not None and size.open and len(taken) < count:
            number, slab = size.open.popitem()
            wanted = count - len(taken)
            part = slab.free[-wanted:]
            del slab.free[-wanted:]
            taken.extend(reversed(part))
            self._empty.pop(number, None)
            size.available -= len(part)
            if slab.free:
                size.open[number] = slab
        self.free_slots -= len(taken)
        self.free_bytes -= slot_bytes * len(taken)
        return taken

    def free(self, slot: int) -> None:
        """Free one slot."""
        slab = self._slab(slot)
        slab.free.append(slot)
        self.free_slots += 1
        self.free_bytes += slab.slot_bytes
        if slab.move is not None:
            slab.move.occupied -= 1
            if not slab.move.occupied:
                self._end_move(slab.move)
            return
        size = self._sizes[slab.slot_bytes]
        size.available += 1
        if len(slab.free) == 1:
            size.open[slab.number] = slab
        if len(slab.free) == slab.count:
            self._empty[slab.number] = slab
        if self.waits.by_key:
            self._notify_waits(slab.slot_bytes, size.available)

    def available(self, slot_bytes: int) -> int:
        """Free slots of this size that can be taken."""
        size = self._sizes.get(slot_bytes)
        return size.available if size else 0

    def _notify_waits(self, slot_bytes: int, available: int) -> None:
        for wait in self.waits.by_key.get(slot_bytes, ()):
            if available >= wait.wanted:
                wait.event.set()

    def unmet_bytes(self) -> Counter[int]:
        """Bytes that waiting stores lack, by slot size."""
        lacking = Counter[int]()
        for size, waits in self.waits.by_key.items():
            lacking[size] = max(0, sum(wait.wanted for wait in waits) - self.available(size)) * size
        return +lacking

    # --- slabs

    def claim_extent(self, slot_bytes: int) -> Extent | None:
        """Reserve space for another slab, of at least one slot; None when the arena is full.  `add_slab` makes it a slab,
        `return_extent` makes it free space again."""
        wanted = slot_bytes * max(1, self.slab_bytes // slot_bytes)
        piece = self._free_space.first_fit(wanted)
        if piece is None or piece.length < slot_bytes:
            self._return_empty_slabs(slot_bytes)
            piece = self._free_space.first_fit(wanted)
        if piece is None or piece.length < slot_bytes:
            return None
        extent = Extent(piece.offset, min(wanted, piece.length // slot_bytes * slot_bytes))
        self._free_space.remove(extent)
        return extent

    def return_extent(self, extent: Extent) -> None:
        self._free_space.add(extent)

    def add_slab(self, slot_bytes: int, extent: Extent) -> None:
        """Turn reserved space that has pages into free slots."""
        count = extent.length // slot_bytes
        first = self._numbers(count)
        number = self._spare_slabs.pop() if self._spare_slabs else len(self._slabs)
        if number == len(self._slabs):
            self._slabs.append(None)
        slab = Slab(number, extent, slot_bytes, first, count, array("I", range(first + count - 1, first - 1, -1)))
        self._slabs[number] = self._empty[number] = slab
        self._slab_of[first : first + count] = array("I", [number]) * count
        offsets = range(extent.offset, extent.offset + count * slot_bytes, slot_bytes)
        self._offsets[first : first + count] = array("Q", offsets)
        self._backed.add(extent)
        self.total += count
        self.free_slots += count
        self.free_bytes += count * slot_bytes
        self.carved_bytes += extent.length
        size = self._sizes.setdefault(slot_bytes, SizeClass())
        size.open[number] = slab
        size.available += count
        size.carved_bytes += extent.length
        if self.waits.by_key:
            self._notify_waits(slot_bytes, size.available)

    # --- moving slabs to another size

    def has_other_sizes(self, slot_bytes: int) -> bool:
        """Does any other size have slabs?"""
        size = self._sizes.get(slot_bytes)
        return self.carved_bytes > (size.carved_bytes if size else 0)

    def moves_to(self, target_bytes: int) -> list[SlabMove]:
        """Stretches that move to this size and wait for slots to be freed."""
        return self._moves.get(target_bytes, []).copy()

    def pieces(self) -> tuple[list[Slab | None], list[Extent]]:
        """All slabs, and the free space between them.  Copies, which need no lock."""
        return self._slabs.copy(), list(self._free_space)

    def begin_move(self, extent: Extent, slabs: Sequence[Slab], target_bytes: int) -> SlabMove | None:
        """Allocate no more slots of these slabs, which fill `extent` together with the free space in it, and make them slabs
        of `target_bytes` when the last slot is freed.  None, and no change, when one of them is gone or moves already."""
        if any(self._slabs[slab.number] is not slab or slab.move is not None for slab in slabs):
            return None
        move = SlabMove(
            target_bytes, list(slabs), extent, sum(slab.occupied for slab in slabs), self._free_space.overlap(extent)
        )
        for piece in move.gaps:
            self._free_space.remove(piece)
        for slab in slabs:
            slab.move = move
            self._close(slab)
        self._moves.setdefault(target_bytes, []).append(move)
        if not move.occupied:
            self._end_move(move)
        return move

    def _end_move(self, move: SlabMove) -> None:
        self._moves[move.target_bytes].remove(move)
        for slab in move.slabs:
            self._dissolve(slab)
        for piece in move.gaps:
            self._free_space.add(piece)
        at, end = self._backed_space(move.slabs[0].extent.offset)
        while end - at >= move.target_bytes:
            part = (
                min((end - at) // move.target_bytes, max(1, self.slab_bytes // move.target_bytes)) * move.target_bytes
            )
            self._free_space.remove(Extent(at, part))
            self.add_slab(move.target_bytes, Extent(at, part))
            at += part

    def _backed_space(self, point: int) -> tuple[int, int]:
        """Begin and end of the free space around a point that has been slabs before."""
        space, backed = self._free_space.piece_at(point), self._backed.piece_at(point)
        assert space is not None, f"{point} is not free space"
        assert backed is not None, f"{point} was never in a slab"
        return max(space.offset, backed.offset), min(space.end, backed.end)

    # --- inside

    def _return_empty_slabs(self, slot_bytes: int) -> None:
        """Return empty slabs of other sizes until there is space for a slot, or none are left.  Several at once and neighbours
        together, so that space is cut from long stretches; not all at once, so that the lock is held briefly."""
        others = [slab for slab in self._empty.values() if slab.slot_bytes != slot_bytes]
        for begin in range(0, len(others), _RETURNED_AT_ONCE):
            for slab in others[begin : begin + _RETURNED_AT_ONCE]:
                self._close(slab)
                self._dissolve(slab)
            piece = self._free_space.first_fit(slot_bytes)
            if piece is not None and piece.length >= slot_bytes:
                return

    def _close(self, slab: Slab) -> None:
        """Its free slots are no longer allocated."""
        size = self._sizes[slab.slot_bytes]
        size.available -= len(slab.free)
        size.open.pop(slab.number, None)
        self._empty.pop(slab.number, None)

    def _dissolve(self, slab: Slab) -> None:
        """A closed slab without an occupied slot becomes free space."""
        self._slabs[slab.number] = None
        self._spare_slabs.append(slab.number)
        self._spare_numbers.add(Extent(slab.first_slot, slab.count))
        self._sizes[slab.slot_bytes].carved_bytes -= slab.extent.length
        self.total -= slab.count
        self.free_slots -= slab.count
        self.free_bytes -= slab.count * slab.slot_bytes
        self.carved_bytes -= slab.extent.length
        self._free_space.add(slab.extent)

    def _numbers(self, count: int) -> int:
        spare = self._spare_numbers.first_fit(count)
        if spare is not None and spare.length >= count:
            self._spare_numbers.remove(Extent(spare.offset, count))
            return spare.offset
        first = len(self._slab_of)
        self._slab_of.frombytes(bytes(count * self._slab_of.itemsize))
        self._offsets.frombytes(bytes(count * self._offsets.itemsize))
        return first
