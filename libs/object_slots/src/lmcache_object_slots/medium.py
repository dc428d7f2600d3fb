"""What an adapter needs of a medium that is cut into slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from lmcache_core import BorrowedBuffer
from lmcache_object_slots.geometry import SlotGeometry


class SlotMedium(Protocol):
    """Moves runs between borrowed memory and slots.  All coroutines run on the loop that `start` ran on, many at a time, and
    raise OSError.  A borrowed buffer is touched until its coroutine has ended and no longer, also where that is cancelled."""

    @property
    def geometry(self) -> SlotGeometry: ...

    @property
    def neighbours(self) -> int:
        """Number of neighbouring slots whose headers are best read together; 1: read each header by itself."""

    async def start(self) -> None:
        """Called once, before anything else."""

    async def write(self, slot: int, buffer: BorrowedBuffer) -> None:
        """The first `geometry.head_bytes` of the run get there only after all the rest has."""

    async def read(self, slot: int, buffer: BorrowedBuffer) -> bytes:
        """Fill the buffer; returns the xxh3-128 of the bytes behind its header page."""

    async def clear_header(self, slot: int) -> None:
        """Clear this slot: its header page is zero on the medium when this returns."""

    async def read_headers(self, slots: Sequence[int]) -> Sequence[bytes]:
        """The header pages of these slots, 4,096 bytes each.  A `range` is read in one piece where there are
        `neighbours`."""

    async def close(self) -> None:
        """Give back what `start` took.  Nothing is under way any more."""

    def counters(self) -> Mapping[str, int]:
        """What the medium counts.  Any thread."""


class MetaRegion(Protocol):
    """The bytes in front of the slots.  Blocking; any thread, one at a time; raises OSError."""

    def read(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes."""

    def write(self, offset: int, data: bytes) -> None:
        """All of it is written, but maybe not on the medium yet."""

    def sync(self) -> None:
        """What was written is on the medium."""
