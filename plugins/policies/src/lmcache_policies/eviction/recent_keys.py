"""Whether a key was met lately, kept or not: two Bloom filters that take turns, sized by the cache.

Maggs, Sitaraman: Algorithmic nuggets in content delivery (SIGCOMM CCR 45(3), 2015), section 4, "cache on second hit",
https://doi.org/10.1145/2805789.2805800

`SeenFilter` has one size for life; this one follows the number of slots.
"""

from __future__ import annotations

from typing import Final

_GENERATION: Final = 4
"""A filter takes this many times as many keys as the cache holds, rounded up to a power of two."""
_MIN_KEYS: Final = 4096
_BITS_PER_KEY: Final = 16
_PROBES: Final = 4


class _Filter:
    def __init__(self, keys: int) -> None:
        self.keys_max = 1 << (max(_MIN_KEYS, keys) - 1).bit_length()
        self.mask = self.keys_max * _BITS_PER_KEY - 1
        self.bits = bytearray(self.keys_max * _BITS_PER_KEY // 8)
        self.count = 0


class RecentKeys:
    """Remembers at least the last four times as many keys as the cache holds, and at most sixteen times as many.  Of new
    keys, about one in 400 is taken for one that was met.  8 to 16 bytes of memory per object in the cache and filter."""

    def __init__(self) -> None:
        self._now = _Filter(0)
        self._before = _Filter(0)

    def meet(self, word: int, resident: int) -> bool:
        """Was the key met before?  It is from now on.  `word` is 64 evenly distributed bits of it, `resident` how many
        objects the cache holds."""
        step = word >> 32 | 1
        fresh = False
        bits, mask, at = self._now.bits, self._now.mask, word
        for _ in range(_PROBES):
            place = at & mask
            if not bits[place >> 3] >> (place & 7) & 1:
                fresh = True
                bits[place >> 3] |= 1 << (place & 7)
            at += step
        if not fresh:
            return True
        bits, mask, at = self._before.bits, self._before.mask, word
        self._count(resident)
        for _ in range(_PROBES):
            place = at & mask
            if not bits[place >> 3] >> (place & 7) & 1:
                return False
            at += step
        return True

    def _count(self, resident: int) -> None:
        self._now.count += 1
        if self._now.count >= self._now.keys_max:
            self._before, self._now = self._now, _Filter(_GENERATION * resident)
