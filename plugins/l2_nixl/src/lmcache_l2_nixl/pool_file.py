"""A pool in a file: superblock and checkpoints in front, one slot behind the other."""

from __future__ import annotations

import errno
import os
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from lmcache_core import HEADER_BYTES, AdapterContext, BorrowedBuffer, ResourceError
from lmcache_l2_nixl.nixl import borrowed
from lmcache_l2_nixl.pieces import BLOCK_BYTES, Descriptors, file_transfers
from lmcache_l2_nixl.pool_medium import PoolMedium
from lmcache_nixl_agent.agent import Extent, NixlAgent, Registration, Segment
from lmcache_nixl_agent.flights import Transfer
from lmcache_nixl_agent.transfers import TransferThread
from lmcache_object_files import accepts_direct
from lmcache_object_slots import FileRegion, Ownership, SlotGeometry

POOL_NAME: Final = "nixl-pool.slots"


class PoolMeta(FileRegion):
    """What is behind the file's end reads as zeros: a file is not made longer before it is known to be a pool."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self._pool_fd: Final = fd

    def read(self, offset: int, length: int) -> bytes:
        there = min(max(os.fstat(self._pool_fd).st_size - offset, 0), length)
        return super().read(offset, there).ljust(length, b"\0")


class PoolFile:
    """Locked until `close`.  `meta` goes through the page cache; `descriptors` are what NIXL is given."""

    def __init__(self, path: Path, geometry: SlotGeometry, context: AdapterContext, *, reserves: bool) -> None:
        """Nothing is opened yet: `open` does that."""
        self.path: Final = path
        self.name: Final = f"{context.name}: pool '{path}'"
        self._geometry: Final = geometry
        self._reserves: Final = reserves
        self._fds: list[int] = []
        self.ownership: Ownership
        self.meta: FileRegion
        self.descriptors: Descriptors

    @classmethod
    def open(
        cls,
        folder: Path,
        geometry: SlotGeometry,
        context: AdapterContext,
        *,
        direct: bool,
        splits: bool,
        reserves: bool,
    ) -> Self:
        """Make it where it is not there; what is there stays as it is until `make_room`.  `splits`: a partial block
        goes through the page cache, where `direct`.  `reserves`: all of it has room on the disk, or is refused.  Raises
        ResourceError."""
        pool = cls(folder.absolute() / POOL_NAME, geometry, context, reserves=reserves)
        try:
            pool._open(context, direct=direct, splits=splits)
        except OSError as error:
            pool.close()
            raise pool._unusable(error) from None
        except BaseException:
            pool.close()
            raise
        return pool

    def is_blank(self) -> bool:
        """Is its metadata zero, and each header page?  True of a file that was made just now."""
        spans = [(0, self._geometry.meta_bytes)]
        spans += [(self._geometry.run_at(slot), self._geometry.head_bytes) for slot in range(self._geometry.count)]
        return all(self.is_hole(at, length) or not any(self.meta.read(at, length)) for at, length in spans)

    def make_room(self) -> None:
        """Let it be as long as its slots, and have the room on the disk for them.  Raises ResourceError."""
        fd, end = self._fds[0], self._geometry.end
        before = os.fstat(fd).st_size
        try:
            if before < end:
                os.ftruncate(fd, end)
            if self._reserves:
                os.posix_fallocate(fd, 0, end)
        except OSError as error:
            if not before:
                os.ftruncate(fd, 0)  # or what there was of room stays taken, by nothing
            raise self._unusable(error) from None

    def close(self) -> None:
        """Release it.  Again: no effect."""
        fds, self._fds = self._fds, []
        for fd in reversed(fds):
            os.close(fd)

    def _open(self, context: AdapterContext, *, direct: bool, splits: bool) -> None:
        folder = self.path.parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._fds.append(fd)
        self.meta = PoolMeta(fd)
        self.ownership = Ownership.take(fd, self.meta, 2 * self._geometry.head_bytes, self.name)
        if not os.fstat(fd).st_size:
            self.make_room()
        is_direct = direct and accepts_direct(folder)
        if direct and not is_direct:
            context.logger.warning(
                "O_DIRECT is not taken here, the page cache is used adapter=%s path=%s", context.name, self.path
            )
        # the same file once more, and no other that has taken its name since
        again = os.O_RDWR | os.O_CLOEXEC | (os.O_DIRECT if is_direct else 0)
        self._fds.append(os.open(f"/proc/self/fd/{fd}", again))
        self.descriptors = Descriptors(self._fds[1], fd if is_direct and splits else None)

    def is_hole(self, at: int, length: int) -> bool:
        """Was nothing ever written here, as far as the file system tells?"""
        try:
            return os.lseek(self._fds[0], at, os.SEEK_DATA) >= at + length
        except OSError as error:
            return error.errno == errno.ENXIO

    def _unusable(self, error: OSError) -> ResourceError:
        size = self._geometry.end
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return ResourceError(
                f"{self.name} of {size} bytes ({self._geometry.count} slots of {self._geometry.slot_bytes}) has no room "
                f"there ({error.strerror}); lower pool_size or slot_bytes, or free some space"
            )
        return ResourceError(
            f"{self.name} cannot be used ({error.strerror}); let backend_params.file_path name a directory that this "
            "server may create and write to"
        )


class FilePool(PoolMedium):
    """A `SlotMedium` in a `PoolFile`, which stays its owner's."""

    def __init__(self, geometry: SlotGeometry, thread: TransferThread, file: PoolFile, *, reserved: bool) -> None:
        """Not `reserved`: room for what is written is taken from the disk before it is, so that a full one says so."""
        super().__init__(geometry, thread)
        self._file = file
        self._reserved_bytes = None if reserved else array("I", bytes(4 * geometry.count))
        self._registration: Registration | None = None

    async def take_places(self) -> None:
        self._registration = await self._thread.do(self._register)

    async def give_places_back(self) -> None:
        registration, self._registration = self._registration, None
        if registration is not None:
            await self._thread.do(lambda agent: agent.deregister(registration))

    async def has_header(self, slot: int) -> bool:
        return not self._file.is_hole(self._geometry.run_at(slot), HEADER_BYTES)

    async def write(self, slot: int, buffer: BorrowedBuffer) -> None:
        reserved = self._reserved_bytes
        if reserved is not None and reserved[slot] < buffer.length:
            at, length = self._geometry.run_at(slot), buffer.length
            await self._thread.do(lambda _: os.posix_fallocate(self._file.descriptors.fd, at, length))
            reserved[slot] = length
        head = min(self._geometry.head_bytes, buffer.length)
        rest = self.transfers(slot, head, borrowed(buffer, head), writes=True) if buffer.length > head else ()
        await self._thread.move(rest, self.transfers(slot, 0, borrowed(buffer, 0, head), writes=True))

    def transfers(self, slot: int, at: int, memory: Extent, *, writes: bool) -> Sequence[Transfer]:
        return file_transfers(self._file.descriptors, self._geometry.run_at(slot) + at, memory, writes=writes)

    def _register(self, agent: NixlAgent) -> Registration:
        end = self._geometry.end
        fds = [fd for fd in self._file.descriptors if fd is not None]
        return agent.register(Segment.FILE, [Extent(0, end, fd) for fd in fds])


def file_geometry(pool_size: int, slot_bytes: int, meta_bytes: int) -> SlotGeometry:
    """Raises ConfigError where the number of slots exceeds the slot numbers."""
    return SlotGeometry(slot_bytes, pool_size, align_bytes=BLOCK_BYTES, meta_bytes=meta_bytes)
