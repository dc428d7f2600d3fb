"""Moving slabs from one slot size to another: which stretch costs the fewest bytes of objects, and the move itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from heapq import nsmallest
from typing import NamedTuple

from lmcache_client.extents import Extent
from lmcache_core.l1.allocator import Slab, SlabMove
from lmcache_core.l1.index import EVICTED, SlotIndex

_EVICT_SLICE = 256
_LOOKED_AT_MAX = 64
"""Windows whose slots are checked one by one, to find some without referenced objects."""
_STARTS_MAX = 512
"""Cheapest pieces around which windows are searched."""


class Window(NamedTuple):
    """Neighbouring slabs of other sizes and the free space between them, large enough for a slot of the target size."""

    extent: Extent
    slabs: tuple[Slab, ...]
    occupied_bytes: int
    """Of objects that would be missed: those that are evicted next anyhow do not count."""
    gain_bytes: int
    """How much of it the target size can use."""

    @property
    def cost(self) -> float:
        """Evicted bytes for each byte that the target size gains."""
        return self.occupied_bytes / self.gain_bytes


class _Piece(NamedTuple):
    """A slab, or free space between slabs."""

    extent: Extent
    slab: Slab | None
    occupied_bytes: int

    @property
    def cost(self) -> float:
        return self.occupied_bytes / self.extent.length


def windows(
    slabs: Sequence[Slab | None],
    free_space: Sequence[Extent],
    target_bytes: int,
    cold: Sequence[Slab] = (),
    fixed: Container[int] = (),
) -> list[Window]:
    """Windows that are no larger than necessary, cheapest first.  They overlap.  `cold` names a slab once for each of its
    objects that is evicted next.  Free space that is large enough by itself is left out, since it needs no move; so are slabs
    with the numbers of `fixed`.  Of a large arena, only the surroundings of the cheapest slabs are searched."""
    leaving = Counter(slab.number for slab in cold)
    pieces = [_Piece(piece, None, 0) for piece in free_space if piece.length < target_bytes]
    pieces += [
        _Piece(slab.extent, slab, max(0, slab.occupied - leaving[slab.number]) * slab.slot_bytes)
        for slab in slabs
        if slab and slab.move is None and slab.slot_bytes != target_bytes and slab.number not in fixed
    ]
    pieces.sort(key=lambda piece: piece.extent.offset)
    found = [window for first in _starts(pieces, target_bytes) if (window := _window(pieces, first, target_bytes))]
    found.sort(key=lambda window: window.cost)
    return found


def _starts(pieces: Sequence[_Piece], target_bytes: int) -> Iterable[int]:
    """Where windows may begin that contain one of the cheapest slabs."""
    if len(pieces) <= _STARTS_MAX:
        return range(len(pieces))
    cheapest = nsmallest(_STARTS_MAX, range(len(pieces)), key=lambda index: pieces[index].cost)
    starts = set()
    for index in cheapest:
        offset = pieces[index].extent.offset
        while index >= 0 and offset - pieces[index].extent.offset < target_bytes:
            starts.add(index)
            index -= 1
    return sorted(starts)


def _window(pieces: Sequence[_Piece], first: int, target_bytes: int) -> Window | None:
    """The shortest one that begins here, and the free space behind it."""
    inside: list[Slab] = []
    begin = end = pieces[first].extent.offset
    occupied = 0
    for index in range(first, len(pieces)):
        extent, slab, missed_bytes = pieces[index]
        if extent.offset != end or (inside and slab and end - begin >= target_bytes):
            break
        end = extent.end
        occupied += missed_bytes
        if slab:
            inside.append(slab)
    gain = (end - begin) // target_bytes * target_bytes
    return Window(Extent(begin, end - begin), tuple(inside), occupied, gain) if inside and gain else None


def choose(candidates: Sequence[Window], wanted_bytes: int, may_evict: Callable[[int], bool]) -> list[Window]:
    """Windows that do not overlap, of `wanted_bytes` together or as near to it as possible.  Those without referenced objects
    come first, then those that wait for the fewest slots."""
    referenced: list[tuple[int, int, Window]] = []
    free: list[Window] = []
    for order, window in enumerate(candidates[:_LOOKED_AT_MAX]):
        if sum(window.gain_bytes for window in free) >= wanted_bytes:
            break
        if _overlaps(window, free):
            continue
        waiting = sum(slab.occupied - sum(map(may_evict, slab.slots)) for slab in window.slabs)
        if waiting > 0:
            referenced.append((waiting, order, window))
        else:
            free.append(window)
    chosen = free
    for _, _, window in sorted(referenced, key=lambda item: item[:2]):
        if sum(window.gain_bytes for window in chosen) >= wanted_bytes:
            break
        if not _overlaps(window, chosen):
            chosen.append(window)
    return chosen


def _overlaps(window: Window, others: Sequence[Window]) -> bool:
    begin, end = window.extent.offset, window.extent.end
    return any(begin < other.extent.end and other.extent.offset < end for other in others)


class SlabMoves:
    """Slabs as the eviction controller sees them.  Every method is safe from any thread."""

    def __init__(self, index: SlotIndex) -> None:
        self._index = index
        self._allocator = index.allocator
        self.slab_bytes = index.allocator.slab_bytes
        """Approximate size of a slab; one of large slots can be larger."""
        self.is_shared = index.allocator.has_other_sizes
        """Do other slot sizes than this one have slabs?"""
        self.find = index.allocator.find_slab
        """The slab of a slot; None when it has just become free space."""
        self.fixed_slots: Callable[[], Collection[int]] = tuple
        """Slots that stay referenced for a long time: a slab with one of them is not to move.  Set before anything runs."""

    def available_bytes(self, slot_bytes: int) -> int:
        """Bytes of the free slots of this size."""
        return self._allocator.available(slot_bytes) * slot_bytes

    def moving_bytes(self, slot_bytes: int) -> int:
        """Bytes of slabs that become slabs of this size as soon as their last references have ended."""
        return sum(move.extent.length for move in self._allocator.moves_to(slot_bytes))

    def pieces(self) -> tuple[list[Slab | None], list[Extent]]:
        """All slabs, and the free space between them: the arguments of `windows`."""
        with self._index.lock:
            return self._allocator.pieces()

    def count_by_size(self) -> dict[int, int]:
        """Number of slabs by the bytes of their slots."""
        slabs, _ = self.pieces()
        return dict(Counter(slab.slot_bytes for slab in slabs if slab is not None))

    def move(self, window: Window, slot_bytes: int) -> int:
        """Make a window slabs of another size: its objects without references are evicted now, and when the last slot is
        free the size has it.  Returns the number of evicted objects; 0 when the window has changed."""
        with self._index.lock:
            move = self._allocator.begin_move(window.extent, window.slabs, slot_bytes)
        return self._empty(move) if move else 0

    def continue_moves(self, slot_bytes: int) -> int:
        """Evict the objects in stretches that move to this size whose references have ended.  Returns their number."""
        with self._index.lock:
            moves = self._allocator.moves_to(slot_bytes)
        return sum(map(self._empty, moves))

    def _empty(self, move: SlabMove) -> int:
        evicted = 0
        inside = [slot for slab in move.slabs for slot in slab.slots]
        for begin in range(0, len(inside), _EVICT_SLICE):
            with self._index.lock:
                if not move.occupied:  # over: these numbers may be other slots by now
                    break
                victims = self._index.table.evictable(inside[begin : begin + _EVICT_SLICE])
                self._index.evict(victims, EVICTED)
            self._index.publish_removals()
            evicted += len(victims)
        return evicted
