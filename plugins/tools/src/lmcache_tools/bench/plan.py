"""What is measured: cells of one object size, one queue depth and one share of loads, each several times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from lmcache_core.model.object_header import HEADER_BYTES

OBJECT_BYTES_MIN: Final = 2 * HEADER_BYTES
"""A header page and as much again: a smaller object is of no use."""
OBJECTS_MIN: Final = 2
"""A load goes where another object lies, so that bytes which were not written are seen."""
STORES, LOADS = 0, 100
"""Shares of loads in percent: nothing else, and nothing but."""


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One line of the table.  `object_bytes` is a whole object, header page included; `depth` is how many of them are on
    their way at once."""

    object_bytes: int
    depth: int
    loads_percent: int

    @property
    def what(self) -> str:
        match self.loads_percent:
            case 0:
                return "store"
            case 100:
                return "load"
            case share:
                return f"{share} % loads"


@dataclass(frozen=True, slots=True)
class Plan:
    """Every combination of sizes, depths and shares.  `pass_bytes` are moved in one measurement, as far as whole objects and
    the depth allow; `seconds` ends a cell early, after two rounds at least."""

    sizes: tuple[int, ...]
    depths: tuple[int, ...]
    shares: tuple[int, ...]
    pass_bytes: int
    rounds: int
    warmup_rounds: int = 1
    seconds: float | None = None
    verify: bool = True

    def grids(self) -> Iterator[tuple[int, int]]:
        """(object bytes, depth): what shares one set of objects."""
        for size in self.sizes:
            for depth in self.depths:
                yield size, depth

    def objects(self, object_bytes: int, depth: int) -> int:
        """How many are stored and loaded in one pass."""
        return max(OBJECTS_MIN, depth, self.pass_bytes // object_bytes)

    @property
    def memory_bytes(self) -> int:
        """L1 that holds the largest set of objects, each at the beginning of a page."""
        return max(self.objects(size, depth) * slot_bytes(size) for size, depth in self.grids())

    @property
    def stored_bytes(self) -> int:
        """Most that an adapter holds at a time, in whole pages: mixed passes store beside what they load."""
        mixed = [share for share in self.shares if STORES < share < LOADS]

        def stored(count: int) -> int:
            return count + sum(count - count * share // 100 for share in mixed)

        return max(stored(self.objects(size, depth)) * slot_bytes(size) for size, depth in self.grids())

    @property
    def rounds_at_most(self) -> int:
        """Of all sizes and depths together."""
        return len(self.sizes) * len(self.depths) * (self.rounds + self.warmup_rounds)


def slot_bytes(object_bytes: int) -> int:
    """What an object takes of memory in which each begins with a page."""
    return -(-object_bytes // HEADER_BYTES) * HEADER_BYTES


def spaced(count: int, percent: int) -> Sequence[bool]:
    """`count` answers, of which `percent` are yes, as evenly as they can be."""
    return [(index + 1) * percent // 100 > index * percent // 100 for index in range(count)]
