"""How often keys were used of late, in a few bytes per slot: a count-min sketch that is halved at intervals.

Einziger, Friedman, Manes: TinyLFU, a highly efficient cache admission policy (ACM Transactions on Storage 13(4), 2017),
https://arxiv.org/abs/1512.00727
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

COUNT_MAX: Final = 15
_ROWS: Final = 4
_ADDS_PER_SLOT: Final = 10
_HALVE: Final = bytes(count >> 1 for count in range(256))
_SPREAD: Final = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)
_MIN_WIDTH: Final = 64


class FrequencySketch:
    """Four counters of one byte for each slot, rounded up to a power of two.  An estimate is never below the true count
    since the last halving, up to 15."""

    def __init__(self) -> None:
        self._width = 0
        self._adds = 0
        self._adds_max = 0
        self._rows: list[bytearray] = []
        self._shift = 0
        self.make_room(_MIN_WIDTH)

    def make_room(self, slots: int) -> None:
        """Wide enough for that many slots.  Growing keeps the estimates: a counter is copied to each place that its
        keys may now have."""
        if slots <= self._width:
            return
        width = 1 << (slots - 1).bit_length()
        repeat = width // self._width if self._width else 0
        self._rows = (
            [_stretched(row, repeat) for row in self._rows] if repeat else [bytearray(width) for _ in range(_ROWS)]
        )
        self._width = width
        self._shift = 64 - (width.bit_length() - 1)
        self._adds_max = _ADDS_PER_SLOT * width

    def add(self, key: bytes) -> None:
        """It was used once more."""
        for row, place in zip(self._rows, self._places(key), strict=True):
            if row[place] < COUNT_MAX:
                row[place] += 1
        self._adds += 1
        if self._adds >= self._adds_max:
            self._rows = [row.translate(_HALVE) for row in self._rows]
            self._adds //= 2

    def estimate(self, key: bytes | None) -> int:
        """0 to 15; 0 for no key."""
        if key is None:
            return 0
        return min(row[place] for row, place in zip(self._rows, self._places(key), strict=True))

    def _places(self, key: bytes) -> tuple[int, int, int, int]:
        # The high bits of products with odd constants: one pass over the key, and the same in every process.
        a, b, c, d = _SPREAD
        base, shift, mask = crc32(key) + 1, self._shift, 0xFFFFFFFFFFFFFFFF
        return (
            (base * a & mask) >> shift,
            (base * b & mask) >> shift,
            (base * c & mask) >> shift,
            (base * d & mask) >> shift,
        )


def _stretched(row: bytearray, repeat: int) -> bytearray:
    """Each counter `repeat` times: the place in a wider row is the old place with more bits behind it."""
    stretched = bytearray(len(row) * repeat)
    for offset in range(repeat):
        stretched[offset::repeat] = row
    return stretched
