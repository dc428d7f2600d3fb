"""A medium in memory that dies on request, in the middle of any operation."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lmcache_core import HEADER_BYTES, BorrowedBuffer
from lmcache_devkit.borrowed_memory import BorrowedMemory, object_key, payload_of
from lmcache_object_slots import SlotGeometry, Volume, VolumeIdentity, meta_bytes_for, open_volume

SLOT_BYTES = 8192
PAYLOAD_BYTES = 3000
OBJECT_BYTES = HEADER_BYTES + PAYLOAD_BYTES


class KilledError(BaseException):
    """The process is dead; nothing it does reaches the medium any more."""


class Disk:
    """Bytes that outlive every process.  A process has a number of writes; its last one is torn."""

    def __init__(self, geometry: SlotGeometry) -> None:
        self.geometry = geometry
        self.bytes = bytearray(geometry.end)
        self.writes_left: int | None = None
        self.torn_share = 0.5
        self.dead = False
        self.fault_in: int | None = None
        """After a number of writes one fails; its bytes may be there all the same."""
        self.broken: set[int] = set()
        """Slots that cannot be read."""
        self.stuck: set[int] = set()
        """Slots that can be read and not written."""

    def write(self, at: int, data: bytes) -> None:
        if self.dead:
            raise KilledError
        if self.writes_left == 0:
            data = data[: int(len(data) * self.torn_share)]
        self.bytes[at : at + len(data)] = data
        if self.writes_left is not None:
            self.dead = self.writes_left == 0
            self.writes_left -= 1
        if self.dead:
            raise KilledError
        if self.fault_in is not None:
            self.fault_in -= 1
            if self.fault_in < 0:
                self.fault_in = None
                raise OSError(errno.EIO, "written, and lost all the same")

    def revive(self) -> None:
        """Another process."""
        self.dead = False
        self.writes_left = None
        self.fault_in = None

    def page(self, slot: int) -> bytes:
        at = self.geometry.run_at(slot)
        return bytes(self.bytes[at : at + HEADER_BYTES])


class DiskRegion:
    """A `MetaRegion` of it."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def read(self, offset: int, length: int) -> bytes:
        return bytes(self._disk.bytes[offset : offset + length])

    def write(self, offset: int, data: bytes) -> None:
        self._disk.write(offset, data)

    def sync(self) -> None:
        if self._disk.dead:
            raise KilledError


class DiskMedium:
    """A `SlotMedium` of it.  Each step takes as many turns of the loop as `delays` says."""

    def __init__(self, disk: Disk, delays: Iterator[int], neighbours: int = 1) -> None:
        self._disk = disk
        self._delays = delays
        self._neighbours = neighbours

    @property
    def geometry(self) -> SlotGeometry:
        return self._disk.geometry

    @property
    def neighbours(self) -> int:
        return self._neighbours

    async def start(self) -> None:
        pass

    async def write(self, slot: int, buffer: BorrowedBuffer) -> None:
        at, data = self.geometry.run_at(slot), bytes(buffer.view)
        await self._turn()
        self._disk.write(at + HEADER_BYTES, data[HEADER_BYTES:])
        await self._turn()
        self._disk.write(at, data[:HEADER_BYTES])
        await self._turn()

    async def read(self, slot: int, buffer: BorrowedBuffer) -> bytes:
        raise NotImplementedError("tests of loads use real media")

    async def clear_header(self, slot: int) -> None:
        await self._turn()
        if slot in self._disk.stuck:
            raise OSError(errno.EIO, "a bad sector")
        self._disk.write(self.geometry.run_at(slot), bytes(HEADER_BYTES))
        await self._turn()

    async def read_headers(self, slots: Sequence[int]) -> Sequence[bytes]:
        await self._turn()
        if self._disk.broken.intersection(slots):
            raise OSError(errno.EIO, "a bad sector")
        pages = [self._disk.page(slot) for slot in slots]
        await self._turn()
        return pages

    async def close(self) -> None:
        pass

    def counters(self) -> Mapping[str, int]:
        return {}

    async def _turn(self) -> None:
        for _ in range(next(self._delays)):
            await asyncio.sleep(0)


class Objects:
    """Whole objects by number, each made once."""

    def __init__(self, count: int, versions: int = 1) -> None:
        self._memory = BorrowedMemory(count * versions * 2 * HEADER_BYTES)
        self._buffers = {
            number: self._memory.sealed(self.key(number), payload_of(number, PAYLOAD_BYTES)) for number in range(count)
        }

    def key(self, number: int) -> Any:
        return object_key(number)

    def __getitem__(self, number: int) -> BorrowedBuffer:
        return self._buffers[number]


def geometry_of(slots: int) -> SlotGeometry:
    return SlotGeometry(SLOT_BYTES, slots, meta_bytes=meta_bytes_for(slots))


def volume_on(
    disk: Disk, *, overwrite: bool = False, is_blank: Callable[[], bool] = lambda: True, **changed: Any
) -> Volume:
    identity = {"name": "the disk", "magic": "tests", "version": 1, "geometry": disk.geometry, **changed}
    return open_volume(DiskRegion(disk), VolumeIdentity(**identity), overwrite=overwrite, is_blank=is_blank)


async def in_this_thread(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """In the place of `in_thread`."""
    return function(*arguments, **named)
