"""Slab slots: where in the arena an object lies.

A slab is a contiguous run of slots of one size, carved out of the arena when a size first needs one.  An empty one is
given back when another size needs the room, and a stretch of slabs moves to another size when it is told to
(`begin_move`): its slots are given out no more, and with the last one freed it belongs to its heir.  A slot is known by a
small integer; what is known of one is kept in arrays, so that it costs 12 bytes and is not walked by the garbage
collector.  Allocating and freeing are O(1) each.

Not synchronised: the caller holds the cache's lock.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence

from lmcache_client.extents import Extent, Extents
from lmcache_core.l1.room_waits import RoomWaits
from lmcache_core.l1.slabs import SizeClass, Slab, SlabMove

SLAB_BYTES = 64 << 20
"""A slab is about this large: big enough that carving is rare, small enough that a size does not hoard."""
_SLABS_PER_ARENA = 8
"""A small arena has at least room for this many slabs."""
_GIVEN_BACK_AT_ONCE = 256
"""Empty slabs; each takes some microseconds under the cache's lock."""


class Slots:
    """The slots of one arena."""

    def __init__(self, arena_bytes: int) -> None:
        self.slab_bytes = max(1, min(SLAB_BYTES, arena_bytes // _SLABS_PER_ARENA))
        self._room = Extents()
        self._room.add(Extent(0, arena_bytes))
        self._backed = Extents()
        """What has ever been a slab: its pages are there."""
        self._sizes: dict[int, SizeClass] = {}
        self._slabs: list[Slab | None] = []
        self._spare_slabs: list[int] = []
        self._empty: dict[int, Slab] = {}
        """Slabs without an occupied slot, by number."""
        self._moves: dict[int, list[SlabMove]] = {}
        """What is on its way to a size."""
        self._slab_of = array("I")
        self._offsets = array("Q")
        self._spare_numbers = Extents()
        """Slot numbers whose slabs are gone."""
        self.waits = RoomWaits()
        self.total = 0
        """Slots that exist now."""
        self.free_slots = 0
        self.free_bytes = 0
        self.carved_bytes = 0

    def __len__(self) -> int:
        """Slot numbers ever given out; arrays indexed by slot need this length."""
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

    def take(self, slot_bytes: int, count: int) -> list[int]:
        """Up to `count` free slots of this size; fewer when no more are carved."""
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

    def give(self, slot: int) -> None:
        """Free one slot."""
        slab = self._slab(slot)
        slab.free.append(slot)
        self.free_slots += 1
        self.free_bytes += slab.slot_bytes
        if slab.move is not None:
            slab.move.busy -= 1
            if not slab.move.busy:
                self._end_move(slab.move)
            return
        size = self._sizes[slab.slot_bytes]
        size.available += 1
        if len(slab.free) == 1:
            size.open[slab.number] = slab
        if len(slab.free) == slab.count:
            self._empty[slab.number] = slab
        if self.waits.by_size:
            self.waits.tell(slab.slot_bytes, size.available)

    def available(self, slot_bytes: int) -> int:
        """Free slots of this size that can be taken."""
        size = self._sizes.get(slot_bytes)
        return size.available if size else 0

    def unmet_bytes(self) -> Counter[int]:
        """What waiting stores lack, by slot size."""
        lacking = Counter[int]()
        for size, waits in self.waits.by_size.items():
            lacking[size] = max(0, sum(wait.wanted for wait in waits) - self.available(size)) * size
        return +lacking

    # --- slabs

    def claim_extent(self, slot_bytes: int) -> Extent | None:
        """Set room aside for another slab, of at least one slot; None when the arena is full.  It becomes a slab with
        `add_slab` or room again with `return_extent`."""
        wanted = slot_bytes * max(1, self.slab_bytes // slot_bytes)
        piece = self._room.first_fit(wanted)
        if piece is None or piece.length < slot_bytes:
            self._room_of_empty_slabs(slot_bytes)
            piece = self._room.first_fit(wanted)
        if piece is None or piece.length < slot_bytes:
            return None
        extent = Extent(piece.offset, min(wanted, piece.length // slot_bytes * slot_bytes))
        self._room.remove(extent)
        return extent

    def return_extent(self, extent: Extent) -> None:
        self._room.add(extent)

    def add_slab(self, slot_bytes: int, extent: Extent) -> None:
        """Turn backed room that was set aside into free slots."""
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
        if self.waits.by_size:
            self.waits.tell(slot_bytes, size.available)

    # --- moving slabs to another size

    def has_other_sizes(self, slot_bytes: int) -> bool:
        """Does any other size have slabs?"""
        size = self._sizes.get(slot_bytes)
        return self.carved_bytes > (size.carved_bytes if size else 0)

    def moves_to(self, heir: int) -> list[SlabMove]:
        """Stretches on their way to this size, which wait for slots to be freed."""
        return self._moves.get(heir, []).copy()

    def pieces(self) -> tuple[list[Slab | None], list[Extent]]:
        """Every slab, and the room between them.  Copies, to be looked at without the lock."""
        return self._slabs.copy(), list(self._room)

    def begin_move(self, extent: Extent, slabs: Sequence[Slab], heir: int) -> SlabMove | None:
        """Give out no more slots of these slabs, which fill `extent` together with the room in it, and make them slabs
        of `heir` when the last slot is freed.  None, and nothing changes, when one of them is gone or moves already."""
        if any(self._slabs[slab.number] is not slab or slab.move is not None for slab in slabs):
            return None
        move = SlabMove(heir, list(slabs), extent, sum(slab.occupied for slab in slabs), self._room.overlap(extent))
        for piece in move.room:
            self._room.remove(piece)
        for slab in slabs:
            slab.move = move
            self._close(slab)
        self._moves.setdefault(heir, []).append(move)
        if not move.busy:
            self._end_move(move)
        return move

    def _end_move(self, move: SlabMove) -> None:
        self._moves[move.heir].remove(move)
        for slab in move.slabs:
            self._dissolve(slab)
        for piece in move.room:
            self._room.add(piece)
        at, end = self._room_with_pages(move.slabs[0].extent.offset)
        while end - at >= move.heir:
            part = min((end - at) // move.heir, max(1, self.slab_bytes // move.heir)) * move.heir
            self._room.remove(Extent(at, part))
            self.add_slab(move.heir, Extent(at, part))
            at += part

    def _room_with_pages(self, point: int) -> tuple[int, int]:
        """Begin and end of the room around a point that has been slabs before."""
        room, backed = self._room.piece_at(point), self._backed.piece_at(point)
        assert room is not None, f"{point} is no room"
        assert backed is not None, f"{point} was never in a slab"
        return max(room.offset, backed.offset), min(room.end, backed.end)

    # --- inside

    def _room_of_empty_slabs(self, slot_bytes: int) -> None:
        """Give empty slabs of other sizes back until there is room for a slot, or none are left.  Several at once and
        neighbours together, so that room is cut from long stretches; not all at once, so that nobody waits for long."""
        others = [slab for slab in self._empty.values() if slab.slot_bytes != slot_bytes]
        for begin in range(0, len(others), _GIVEN_BACK_AT_ONCE):
            for slab in others[begin : begin + _GIVEN_BACK_AT_ONCE]:
                self._close(slab)
                self._dissolve(slab)
            piece = self._room.first_fit(slot_bytes)
            if piece is not None and piece.length >= slot_bytes:
                return

    def _close(self, slab: Slab) -> None:
        """Its free slots can be taken no more."""
        size = self._sizes[slab.slot_bytes]
        size.available -= len(slab.free)
        size.open.pop(slab.number, None)
        self._empty.pop(slab.number, None)

    def _dissolve(self, slab: Slab) -> None:
        """A closed slab without an occupied slot becomes room."""
        self._slabs[slab.number] = None
        self._spare_slabs.append(slab.number)
        self._spare_numbers.add(Extent(slab.first_slot, slab.count))
        self._sizes[slab.slot_bytes].carved_bytes -= slab.extent.length
        self.total -= slab.count
        self.free_slots -= slab.count
        self.free_bytes -= slab.count * slab.slot_bytes
        self.carved_bytes -= slab.extent.length
        self._room.add(slab.extent)

    def _numbers(self, count: int) -> int:
        spare = self._spare_numbers.first_fit(count)
        if spare is not None and spare.length >= count:
            self._spare_numbers.remove(Extent(spare.offset, count))
            return spare.offset
        first = len(self._slab_of)
        self._slab_of.frombytes(bytes(count * self._slab_of.itemsize))
        self._offsets.frombytes(bytes(count * self._offsets.itemsize))
        return first
