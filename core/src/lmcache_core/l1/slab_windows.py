"""Which stretch of slabs to hand to another size: the one that costs the fewest bytes of objects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from heapq import nsmallest
from typing import NamedTuple

from lmcache_client.extents import Extent
from lmcache_core.l1.slabs import Slab

_LOOKED_AT_MAX = 64
"""Windows whose slots are looked at one by one to find some that nobody holds anything in."""
_STARTS_MAX = 512
"""Cheapest pieces around which windows are looked for."""


class Window(NamedTuple):
    """Neighbouring slabs of other sizes and the room between them, large enough for a slot of the heir."""

    extent: Extent
    slabs: tuple[Slab, ...]
    occupied_bytes: int
    """Of objects that would be missed: those that are next to leave anyhow do not count."""
    gain_bytes: int
    """What the heir can use of it."""

    @property
    def cost(self) -> float:
        """Bytes of objects that leave for each byte that the heir gains."""
        return self.occupied_bytes / self.gain_bytes


class _Piece(NamedTuple):
    """A slab, or the room between slabs."""

    extent: Extent
    slab: Slab | None
    occupied_bytes: int

    @property
    def cost(self) -> float:
        return self.occupied_bytes / self.extent.length


def windows(
    slabs: Sequence[Slab | None],
    room: Sequence[Extent],
    heir: int,
    cold: Sequence[Slab] = (),
    fixed: Container[int] = (),
) -> list[Window]:
    """Those that are no larger than they must be, cheapest first.  They overlap.  `cold` names a slab once for each of
    its objects that is next to leave.  Room that is large enough by itself is left out: it can be had without moving
    anything; so are slabs with the numbers of `fixed`.  Of a large arena, only what lies around the cheapest slabs is looked
    at."""
    leaving = Counter(slab.number for slab in cold)
    pieces = [_Piece(piece, None, 0) for piece in room if piece.length < heir]
    pieces += [
        _Piece(slab.extent, slab, max(0, slab.occupied - leaving[slab.number]) * slab.slot_bytes)
        for slab in slabs
        if slab and slab.move is None and slab.slot_bytes != heir and slab.number not in fixed
    ]
    pieces.sort(key=lambda piece: piece.extent.offset)
    found = [window for first in _starts(pieces, heir) if (window := _window(pieces, first, heir))]
    found.sort(key=lambda window: window.cost)
    return found


def _starts(pieces: Sequence[_Piece], heir: int) -> Iterable[int]:
    """Where windows may begin that contain one of the cheapest slabs."""
    if len(pieces) <= _STARTS_MAX:
        return range(len(pieces))
    cheapest = nsmallest(_STARTS_MAX, range(len(pieces)), key=lambda index: pieces[index].cost)
    starts = set()
    for index in cheapest:
        offset = pieces[index].extent.offset
        while index >= 0 and offset - pieces[index].extent.offset < heir:
            starts.add(index)
            index -= 1
    return sorted(starts)


def _window(pieces: Sequence[_Piece], first: int, heir: int) -> Window | None:
    """The shortest one that begins here, and the room behind it."""
    inside: list[Slab] = []
    begin = end = pieces[first].extent.offset
    occupied = 0
    for index in range(first, len(pieces)):
        extent, slab, missed_bytes = pieces[index]
        if extent.offset != end or (inside and slab and end - begin >= heir):
            break
        end = extent.end
        occupied += missed_bytes
        if slab:
            inside.append(slab)
    gain = (end - begin) // heir * heir
    return Window(Extent(begin, end - begin), tuple(inside), occupied, gain) if inside and gain else None


def choose(candidates: Sequence[Window], wanted_bytes: int, may_evict: Callable[[int], bool]) -> list[Window]:
    """Windows that do not overlap, of `wanted_bytes` together or as near to it as there are.  Those that nobody holds
    anything in come first, then those that wait for the fewest slots."""
    held: list[tuple[int, int, Window]] = []
    free: list[Window] = []
    for order, window in enumerate(candidates[:_LOOKED_AT_MAX]):
        if sum(window.gain_bytes for window in free) >= wanted_bytes:
            break
        if _overlaps(window, free):
            continue
        waiting = sum(slab.occupied - sum(map(may_evict, slab.slots)) for slab in window.slabs)
        if waiting > 0:
            held.append((waiting, order, window))
        else:
            free.append(window)
    chosen = free
    for _, _, window in sorted(held, key=lambda item: item[:2]):
        if sum(window.gain_bytes for window in chosen) >= wanted_bytes:
            break
        if not _overlaps(window, chosen):
            chosen.append(window)
    return chosen


def _overlaps(window: Window, others: Sequence[Window]) -> bool:
    begin, end = window.extent.offset, window.extent.end
    return any(begin < other.extent.end and other.extent.offset < end for other in others)
