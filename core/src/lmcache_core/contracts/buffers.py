"""Memory of L1 as adapters see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from lmcache_core.model.object_header import HEADER_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class MemoryRegion:
    """One contiguous stretch of L1 memory, valid from `open` to `close` of an adapter: register it once.

    `address` is in this process; `descriptor` and `name` are those of the shared-memory segment, None for memory that
    is not shared.  A file on a disk has a descriptor and no name.  Pages that no slot lies in yet may not be backed: read
    or write only inside of borrowed buffers.
    """

    address: int
    length: int
    view: memoryview
    descriptor: int | None = None
    name: str | None = None
    direct_io: bool = False
    """Of a file: who copies between it and a device is to open it again, past the page cache (O_DIRECT, cuFile)."""

    @property
    def is_file(self) -> bool:
        """Does it lie on a disk?  Touching it may wait for that disk."""
        return self.descriptor is not None and self.name is None


class BorrowedBuffer(NamedTuple):
    """`length` bytes at `offset` of a region, borrowed until the job's buffers are released.  Page-aligned."""

    region: MemoryRegion
    offset: int
    length: int
    at_most: bool = False
    """Of a load: the object may be shorter, and then its bytes come first.  Only adapters with `ANY_LENGTH` get such
    buffers."""

    @property
    def address(self) -> int:
        return self.region.address + self.offset

    @property
    def view(self) -> memoryview:
        return self.region.view[self.offset : self.offset + self.length]

    def takes(self, length: int) -> bool:
        """Of a load: may an object of this length, header page included, be read into it?  Another one is DAMAGED."""
        return length == self.length or (self.at_most and HEADER_BYTES < length < self.length)
