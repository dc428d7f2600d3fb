"""A fixed-size set of small integers, for "which of these keys"."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


class Bitmap:
    """One bit for each of `size` positions.  Not synchronised; owned by whoever made it."""

    __slots__ = ("_bits", "size")

    def __init__(self, size: int, positions: Iterable[int] = ()) -> None:
        self.size = size
        self._bits = bytearray(size)
        for position in positions:
            self._bits[position] = 1

    def add(self, position: int) -> None:
        self._bits[position] = 1

    def __contains__(self, position: int) -> bool:
        return 0 <= position < self.size and self._bits[position] == 1

    def __iter__(self) -> Iterator[int]:
        at = self._bits.find(1)
        while at >= 0:
            yield at
            at = self._bits.find(1, at + 1)

    def __len__(self) -> int:
        return self._bits.count(1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bitmap) and self._bits == other._bits

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"Bitmap({self.size}, {list(self)})"

    def prefix(self) -> int:
        """How many positions from 0 on are set without a gap."""
        gap = self._bits.find(0)
        return self.size if gap < 0 else gap
