"""Slab slots: where in the arena an object lies.

A slab is a contiguous run of slots of one size, carved out of the arena when a size first needs one and given back when
it is empty and another size needs the room.  A slot is known by a small integer.  Allocating and freeing are O(1) each.

Not synchronised: the caller holds the cache's lock.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import NamedTuple

SLAB_BYTES = 64 << 20
"""A slab is about this large: big enough that carving is rare, small enough that a size does not hoard."""
_SLABS_PER_ARENA = 8
"""A small arena has at least room for this many slabs."""


class Extent(NamedTuple):
    """A stretch of bytes, or of slot numbers."""

    offset: int
    length: int


def _joined(pieces: list[Extent], piece: Extent) -> list[Extent]:
    """`pieces` with one more, neighbours merged."""
    joined: list[Extent] = []
    for offset, length in sorted([*pieces, piece]):
        if joined and joined[-1].offset + joined[-1].length == offset:
            joined[-1] = Extent(joined[-1].offset, joined[-1].length + length)
        else:
            joined.append(Extent(offset, length))
    return joined


@dataclass(slots=True)
class _Slab:
    extent: Extent
    slot_bytes: int
    first_slot: int
    count: int
    free: int


@dataclass(slots=True)
class _SizeClass:
    free: list[int] = field(default_factory=list)
    """Last in, first out: the warmest memory is used again first."""


class Slots:
    """The slots of one arena."""

    def __init__(self, arena_bytes: int) -> None:
        self._slab_bytes = min(SLAB_BYTES, arena_bytes // _SLABS_PER_ARENA)
        self._room = [Extent(0, arena_bytes)]
        self._sizes: dict[int, _SizeClass] = {}
        self._slabs: list[_Slab | None] = []
        self._slab_of = array("I")
        self._spare_numbers: list[Extent] = []
        """Slot numbers whose slabs were given back."""
        self.free_slots = 0
        self.free_bytes = 0
        self.carved_bytes = 0

    def __len__(self) -> int:
        """Slot numbers ever given out; arrays indexed by slot need this length."""
        return len(self._slab_of)

    @property
    def total(self) -> int:
        """Slots that exist now."""
        return sum(slab.count for slab in self._slabs if slab)

    def offset(self, slot: int) -> int:
        """Byte offset of the slot in the arena."""
        slab = self._slab(slot)
        return slab.extent.offset + (slot - slab.first_slot) * slab.slot_bytes

    def slot_bytes(self, slot: int) -> int:
        return self._slab(slot).slot_bytes

    def take(self, slot_bytes: int, count: int) -> list[int]:
        """Up to `count` free slots of this size; fewer when no more are carved."""
        size = self._sizes.get(slot_bytes)
        if size is None or count <= 0 or not size.free:
            return []
        taken = size.free[-count:]
        del size.free[-count:]
        taken.reverse()
        for slot in taken:
            self._slab(slot).free -= 1
        self.free_slots -= len(taken)
        self.free_bytes -= slot_bytes * len(taken)
        return taken

    def give(self, slot: int) -> None:
        """Free one slot."""
        slab = self._slab(slot)
        self._sizes[slab.slot_bytes].free.append(slot)
        slab.free += 1
        self.free_slots += 1
        self.free_bytes += slab.slot_bytes

    def available(self, slot_bytes: int) -> int:
        """Free slots of this size."""
        size = self._sizes.get(slot_bytes)
        return len(size.free) if size else 0

    def claim_extent(self, slot_bytes: int, count: int) -> Extent | None:
        """Set room aside for another slab of at least one and about `count` slots; None when the arena is full.
        It becomes a slab with `add_slab` or room again with `return_extent`."""
        wanted = slot_bytes * max(1, min(max(count, self._slab_bytes // slot_bytes), SLAB_BYTES // slot_bytes or 1))
        extent = self._cut(wanted, slot_bytes)
        if extent is None and self._give_back_empty_slabs(slot_bytes):
            extent = self._cut(wanted, slot_bytes)
        return extent

    def return_extent(self, extent: Extent) -> None:
        self._room = _joined(self._room, extent)

    def add_slab(self, slot_bytes: int, extent: Extent) -> None:
        """Turn backed room into free slots."""
        count = extent.length // slot_bytes
        first = self._numbers(count)
        number = self._spare_slab()
        self._slabs[number] = _Slab(extent, slot_bytes, first, count, count)
        for slot in range(first, first + count):
            self._slab_of[slot] = number
        size = self._sizes.setdefault(slot_bytes, _SizeClass())
        size.free.extend(range(first + count - 1, first - 1, -1))
        self.free_slots += count
        self.free_bytes += count * slot_bytes
        self.carved_bytes += extent.length

    def neighbours(self, slot_bytes: int) -> list[list[range]]:
        """The slots of each stretch of slabs of other sizes, and room between them, that would be large enough for one
        slot of this size; the emptiest stretch first."""
        pieces: list[tuple[Extent, _Slab | None]] = [(extent, None) for extent in self._room]
        pieces += [(slab.extent, slab) for slab in self._slabs if slab and slab.slot_bytes != slot_bytes]
        pieces.sort(key=lambda piece: piece[0])
        windows: list[tuple[int, list[range]]] = []
        for first in range(len(pieces)):
            slots, occupied, end = list[range](), 0, pieces[first][0].offset
            for extent, slab in pieces[first:]:
                if extent.offset != end or end - pieces[first][0].offset >= slot_bytes:
                    break
                end += extent.length
                if slab:
                    slots.append(range(slab.first_slot, slab.first_slot + slab.count))
                    occupied += (slab.count - slab.free) * slab.slot_bytes
            if slots and end - pieces[first][0].offset >= slot_bytes:
                windows.append((occupied, slots))
        windows.sort(key=lambda window: window[0])
        return [slots for _, slots in windows]

    def _slab(self, slot: int) -> _Slab:
        slab = self._slabs[self._slab_of[slot]]
        assert slab is not None, f"slot {slot} has no slab"
        return slab

    def _cut(self, wanted: int, slot_bytes: int) -> Extent | None:
        best = max(self._room, key=lambda piece: piece.length, default=None)
        fitting = next((piece for piece in self._room if piece.length >= wanted), best)
        if fitting is None or fitting.length < slot_bytes:
            return None
        length = min(wanted, fitting.length // slot_bytes * slot_bytes)
        at = self._room.index(fitting)
        rest = Extent(fitting.offset + length, fitting.length - length)
        self._room[at : at + 1] = [rest] if rest.length else []
        return Extent(fitting.offset, length)

    def _give_back_empty_slabs(self, for_slot_bytes: int) -> bool:
        given = False
        for number, slab in enumerate(self._slabs):
            if slab is None or slab.slot_bytes == for_slot_bytes or slab.free < slab.count:
                continue
            numbers = range(slab.first_slot, slab.first_slot + slab.count)
            size = self._sizes[slab.slot_bytes]
            size.free = [slot for slot in size.free if slot not in numbers]
            self._slabs[number] = None
            self._spare_numbers = _joined(self._spare_numbers, Extent(slab.first_slot, slab.count))
            self.free_slots -= slab.count
            self.free_bytes -= slab.count * slab.slot_bytes
            self.carved_bytes -= slab.extent.length
            self.return_extent(slab.extent)
            given = True
        return given

    def _numbers(self, count: int) -> int:
        for at, (first, spare) in enumerate(self._spare_numbers):
            if spare >= count:
                self._spare_numbers[at : at + 1] = [Extent(first + count, spare - count)] if spare > count else []
                return first
        first = len(self._slab_of)
        self._slab_of.extend(bytes(count))
        return first

    def _spare_slab(self) -> int:
        for number, slab in enumerate(self._slabs):
            if slab is None:
                return number
        self._slabs.append(None)
        return len(self._slabs) - 1
