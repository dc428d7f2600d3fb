"""How long things took: counted exactly, in buckets."""

from __future__ import annotations

import math
from bisect import bisect_left
from operator import add
from typing import Final

from lmcache_core.contracts.readings import Spread

BOUNDS_SECONDS: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
"""Upper ends of the buckets, which belong to them, without the last one's."""


class Durations:
    """Not thread-safe: the owner holds a lock."""

    __slots__ = ("_counts", "_least", "_most", "_seconds", "total")

    def __init__(self) -> None:
        self.total = 0
        """How many there were."""
        self._counts = [0] * (len(BOUNDS_SECONDS) + 1)
        self._seconds, self._least, self._most = 0.0, math.inf, 0.0

    def count(self, seconds: float) -> None:
        self.total += 1
        self._counts[bisect_left(BOUNDS_SECONDS, seconds)] += 1
        self._seconds += seconds
        if seconds < self._least:
            self._least = seconds
        if seconds > self._most:
            self._most = seconds

    def add(self, other: Durations) -> None:
        """Count what the other one counts, too."""
        self.total += other.total
        self._counts = list(map(add, self._counts, other._counts))
        self._seconds += other._seconds
        self._least, self._most = min(self._least, other._least), max(self._most, other._most)

    def spread(self) -> Spread:
        return Spread(tuple(self._counts), self._seconds, self._least, self._most)
