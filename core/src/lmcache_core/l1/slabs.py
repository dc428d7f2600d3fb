"""Slabs: runs of slots of one size, and their move from one size to another."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from lmcache_client.extents import Extent


@dataclass(slots=True, eq=False)
class Slab:
    """`count` slots of `slot_bytes` at `extent`, numbered from `first_slot`.  Changed by `Slots` alone; others may look
    at it without a lock, and see `free` a little late."""

    number: int
    extent: Extent
    slot_bytes: int
    first_slot: int
    count: int
    free: array[int]
    """Slot numbers, the next to be given out at the end."""
    move: SlabMove | None = None

    @property
    def slots(self) -> range:
        return range(self.first_slot, self.first_slot + self.count)

    @property
    def occupied(self) -> int:
        """Slots that are not free."""
        return self.count - len(self.free)


@dataclass(slots=True, eq=False)
class SlabMove:
    """A stretch on its way to another size.  Nothing in it is given out; when its last slot is freed, all of it becomes
    slabs of `heir` at once, so that nobody else can take it first."""

    heir: int
    slabs: list[Slab]
    extent: Extent
    busy: int
    """Slots in it that are not free yet."""
    room: list[Extent] = field(default_factory=list)
    """What lay free between the slabs."""


@dataclass(slots=True)
class SizeClass:
    """The slabs of one slot size."""

    available: int = 0
    """Slots that can be given out: free, and not in a slab that moves."""
    carved_bytes: int = 0
    open: dict[int, Slab] = field(default_factory=dict)
    """Slabs with such slots, by number; the one that was opened last is used first."""
