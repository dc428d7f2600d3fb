"""Which objects were met before, in four bytes per object: two Bloom filters that take turns.

Maggs, Sitaraman: Algorithmic nuggets in content delivery (SIGCOMM CCR 45(3), 2015), section 4, "cache on second hit",
https://doi.org/10.1145/2805789.2805800
"""

from __future__ import annotations

from struct import Struct
from typing import Final

_BITS_PER_OBJECT: Final = 16
_PLACES: Final = Struct("<4I")


class SeenFilter:
    """Remembers at least the last `objects` of them, and at most twice as many.  Of new objects, about one in
    200 is taken for one that was met."""

    def __init__(self, objects: int) -> None:
        self._objects = objects
        self._bits = objects * _BITS_PER_OBJECT
        self._now = bytearray(self._bits // 8)
        self._before = bytearray(self._bits // 8)
        self._count = 0

    def meet(self, object_id: bytes) -> bool:
        """Was it met before?  It is from now on.  `object_id` is 16 evenly distributed bytes."""
        places = [place % self._bits for place in _PLACES.unpack(object_id)]
        fresh = not _has(self._now, places)
        met = not fresh or _has(self._before, places)
        if fresh:
            if self._count == self._objects:
                self._before, self._now = self._now, bytearray(self._bits // 8)
                self._count = 0
            self._count += 1
            for place in places:
                self._now[place >> 3] |= 1 << (place & 7)
        return met


def _has(bits: bytearray, places: list[int]) -> bool:
    return all(bits[place >> 3] >> (place & 7) & 1 for place in places)
