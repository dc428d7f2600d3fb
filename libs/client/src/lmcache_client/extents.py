"""Disjoint stretches of a line, neighbours merged: free room, backed memory, spare slot numbers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple


class Extent(NamedTuple):
    """A stretch of bytes, or of slot numbers."""

    offset: int
    length: int

    @property
    def end(self) -> int:
        return self.offset + self.length


class Extents:
    """Adding and cutting cost a binary search and a move of what lies behind; there are few pieces, since they merge.

    Not synchronised."""

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._ends: list[int] = []
        self.total = 0
        """Sum of the lengths."""

    def __iter__(self) -> Iterator[Extent]:
        return (Extent(offset, end - offset) for offset, end in zip(self._offsets, self._ends, strict=True))

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, piece: Extent) -> None:
        """Afterwards every point of `piece` is in the set; it may overlap what is there."""
        if piece.length <= 0:
            return
        offset, end = piece.offset, piece.end
        first = last = bisect_right(self._offsets, offset)
        if first and self._ends[first - 1] >= offset:
            first -= 1
        while last < len(self._offsets) and self._offsets[last] <= end:
            last += 1
        if first < last:
            offset, end = min(offset, self._offsets[first]), max(end, self._ends[last - 1])
            self.total -= sum(self._ends[first:last]) - sum(self._offsets[first:last])
        self._offsets[first:last] = [offset]
        self._ends[first:last] = [end]
        self.total += end - offset

    def remove(self, piece: Extent) -> None:
        """Take out a stretch that is in the set as a whole."""
        at = bisect_right(self._offsets, piece.offset) - 1
        offset, end = self._offsets[at], self._ends[at]
        assert offset <= piece.offset < piece.end <= end, f"{piece} is not there as a whole"
        rest = [(offset, piece.offset), (piece.end, end)]
        kept = [(left, right) for left, right in rest if left < right]
        self._offsets[at : at + 1] = [left for left, _ in kept]
        self._ends[at : at + 1] = [right for _, right in kept]
        self.total -= piece.length

    def piece_at(self, point: int) -> Extent | None:
        """The stretch that a point lies in."""
        at = bisect_right(self._offsets, point) - 1
        if at < 0 or self._ends[at] <= point:
            return None
        return Extent(self._offsets[at], self._ends[at] - self._offsets[at])

    def missing(self, within: Extent) -> list[Extent]:
        """The parts of `within` that are not in the set."""
        gaps, at = [], within.offset
        index = max(0, bisect_right(self._offsets, at) - 1)
        while at < within.end and index < len(self._offsets):
            offset, end = self._offsets[index], self._ends[index]
            if offset > at:
                gaps.append(Extent(at, min(offset, within.end) - at))
            at = max(at, end)
            index += 1
        if at < within.end:
            gaps.append(Extent(at, within.end - at))
        return gaps

    def overlap(self, within: Extent) -> list[Extent]:
        """The parts of `within` that are in the set."""
        parts, at = [], within.offset
        for gap in (*self.missing(within), Extent(within.end, 0)):
            if gap.offset > at:
                parts.append(Extent(at, gap.offset - at))
            at = gap.end
        return parts

    def first_fit(self, length: int) -> Extent | None:
        """The first stretch of at least `length`, or else the longest; None when there is none."""
        lengths = [end - offset for offset, end in zip(self._offsets, self._ends, strict=True)]
        at = next((index for index, found in enumerate(lengths) if found >= length), None)
        if at is None:
            if not lengths:
                return None
            at = lengths.index(max(lengths))
        return Extent(self._offsets[at], lengths[at])
