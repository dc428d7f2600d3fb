"""A block device or file, opened for one owner."""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

from lmcache_core import AdapterContext, ConfigError, ResourceError
from lmcache_object_slots import FileRegion, Ownership

EDGE_BYTES: Final = 2**20
"""Partition tables and file systems leave marks in the first or last bytes of a device, at most this number."""
SAMPLES: Final = 1024
SAMPLE_BYTES: Final = 4096


class Device:
    """`fd` moves slots, with O_DIRECT where `direct`; `meta` the metadata, through the page cache.  Locked until `close`."""

    def __init__(self, name: str, meta_fd: int, fd: int, size: int, ownership: Ownership, *, direct: bool) -> None:
        self.name = name
        self.fd = fd
        self.size = size
        self.direct = direct
        self.meta = FileRegion(meta_fd)
        self.ownership = ownership
        self._meta_fd = meta_fd

    @classmethod
    def open(cls, path: Path, block_align: int, context: AdapterContext, *, direct: bool) -> Self:
        """Nothing is written.  Raises ResourceError where it does not exist, is not a device or file, or has another owner."""
        name = f"{context.name}: device_path '{path}'"
        fds: list[int] = []
        try:
            fds.append(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
            mode = os.fstat(fds[0]).st_mode
            if not (stat.S_ISBLK(mode) or stat.S_ISREG(mode)):
                raise ResourceError(f"{name} is neither a block device nor a file; name one")
            ownership = Ownership.take(fds[0], FileRegion(fds[0]), 2 * max(4096, block_align), name)
            flags = os.O_RDWR | os.O_CLOEXEC | (os.O_EXCL if stat.S_ISBLK(mode) else 0)
            is_direct = direct and _takes_direct(path, block_align, name, context, is_device=stat.S_ISBLK(mode))
            fds.append(os.open(path, flags | (os.O_DIRECT if is_direct else 0)))
            if not os.path.samestat(os.fstat(fds[0]), os.fstat(fds[1])):  # the lock is on the other one
                raise ResourceError(f"{name} was replaced while it was opened; give each server one of its own")
            size = os.lseek(fds[0], 0, os.SEEK_END)
            return cls(name, fds[0], fds[1], size, ownership, direct=is_direct)
        except OSError as error:
            _close(fds)
            raise ResourceError(f"{name} cannot be used: {_reason(error)}") from None
        except BaseException:
            _close(fds)
            raise

    def is_blank(self) -> bool:
        """Are its first and last MiB zero, and a thousand pages in between?  Of a file with holes, all of it is looked at."""
        try:
            os.lseek(self._meta_fd, 0, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return True  # a hole from end to end
        return all(not any(self.meta.read(at, length)) for at, length in self._samples())

    def close(self) -> None:
        """Release it."""
        _close([self.fd, self._meta_fd])

    def _samples(self) -> Iterator[tuple[int, int]]:
        edge = min(EDGE_BYTES, self.size)
        yield 0, edge
        yield self.size - edge, edge
        step = max((self.size - 2 * edge) // SAMPLES, SAMPLE_BYTES)
        for at in range(edge, self.size - edge - SAMPLE_BYTES, step):
            yield at, SAMPLE_BYTES


def _takes_direct(path: Path, block_align: int, name: str, context: AdapterContext, *, is_device: bool) -> bool:
    """Does reading one block past the page cache work?"""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
        try:
            with mmap.mmap(-1, max(block_align, mmap.PAGESIZE)) as memory, memoryview(memory)[:block_align] as block:
                os.preadv(fd, [block], 0)
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
        if is_device:
            raise ConfigError(
                f"{name} does not take transfers of block_align {block_align} bytes past the page cache; "
                "raise block_align to its logical block size (blockdev --getss), or set use_odirect to false"
            ) from None
        context.logger.warning(
            "O_DIRECT is not taken here, the page cache is used adapter=%s path=%s", context.name, path
        )
        return False
    return True


def _reason(error: OSError) -> str:
    match error.errno:
        case errno.EBUSY:
            return "it is mounted, or in use by the kernel; unmount it, or name another"
        case errno.ENOENT:
            return "the file does not exist; name a block device, or make a file of the size you want (truncate -s)"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return f"{error.strerror}; let this server read and write it"
        case _:
            return f"{error.strerror}; name a block device or a file that can be read and written"


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
