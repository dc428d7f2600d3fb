"""Memory of L1: buffers as adapters see them, and where the bytes are, such as a file on a fast disk, or memory of a device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

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


class L1MemoryContext(msgspec.Struct, frozen=True):
    """What the server gives an L1 memory when it opens it."""

    size_bytes: int
    """Length of the region, a multiple of `align_bytes`."""
    align_bytes: int
    """Slots begin at multiples of this offset in the region; itself a multiple of 4096."""
    instance_id: str
    """Name of the server."""
    boot_id: str
    """Differs each time that the server starts."""


class L1Memory(ABC):
    """The memory of one server's L1: opened before adapters and engines use it, closed after all of them.

    `open` raises ResourceError, with a remedy, when the memory is not available in this size, or another server uses it.
    The memory must be this server's alone, and nothing of a former run is read from it.  The methods may be called by
    several threads at once, `unlink` and `close` by one, after each other."""

    @property
    @abstractmethod
    def region(self) -> MemoryRegion:
        """`size_bytes` of memory that this process can read and write, at an address that is a multiple of 4096.  The same
        object each time.  Its `name` is that of a segment in /dev/shm, which engines then map; None: they get their bytes
        over the engine port."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """What it is, in a word such as `file`: for `/status`, metrics and the log."""

    @property
    def path(self) -> Path | None:
        """Where it lies on a disk; None where it does not."""
        return None

    @property
    def is_lazy(self) -> bool:
        """False: all pages are allocated when it is opened.  True: `allocate` is called for a stretch before it is used."""
        return False

    def allocate(self, offset: int, length: int, ahead: bool) -> None:  # noqa: B027 - called for lazy ones alone
        """Allocate the pages of a stretch, so that writing to it cannot fail later.  `ahead`: on the thread that allocates
        ahead of need; otherwise a store waits for it.  Raises OSError with ENOSPC or ENOMEM when there are no more."""

    def fetch(self, offset: int, length: int) -> None:  # noqa: B027 - memory is there
        """Bring a stretch into memory before the calling thread reads or writes it.  Waits without the interpreter's lock.
        Raises OSError when the medium fails.  Bounded only by the medium."""

    def unlink(self) -> None:  # noqa: B027 - most have no name
        """The server stops: remove the name that others could find the memory by.  Its bytes are still used."""

    @abstractmethod
    def close(self) -> None:
        """Release everything.  No server thread uses the region any more.  Calling it again does nothing."""
