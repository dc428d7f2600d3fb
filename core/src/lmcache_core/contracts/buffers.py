"""Memory of L1 as adapters see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True, eq=False)
class MemoryRegion:
    """One contiguous stretch of L1 memory, valid from `open` to `close` of an adapter: register it once.

    `address` is in this process; `descriptor` and `name` are those of the shared-memory segment, None for memory that
    is not shared.  Pages that no slot lies in yet may not be backed: read or write only inside of lent buffers.
    """

    address: int
    length: int
    view: memoryview
    descriptor: int | None = None
    name: str | None = None


class LentBuffer(NamedTuple):
    """`length` bytes at `offset` of a region, lent until the job's buffers are released.  Page-aligned."""

    region: MemoryRegion
    offset: int
    length: int

    @property
    def address(self) -> int:
        return self.region.address + self.offset

    @property
    def view(self) -> memoryview:
        return self.region.view[self.offset : self.offset + self.length]
