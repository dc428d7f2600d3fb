"""A Device-DAX device or a file, mapped."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import stat
from pathlib import Path
from typing import Final, NamedTuple

from lmcache_core import ResourceError

HUGE_PAGE_BYTES: Final = 2 * 2**20
"""Device-DAX maps whole huge pages; its `align` in sysfs may ask for more."""
CHARACTER_DEVICES: Final = Path("/sys/dev/char")
_OPEN: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK
_MAP_SHARED_VALIDATE: Final = 0x03  # Linux; the mmap module has no names for these
_MAP_SYNC: Final = 0x80000


class Extent(NamedTuple):
    """How much of a device can be mapped, and in pieces of what, in bytes."""

    size_bytes: int
    align_bytes: int


class MappedDevice:
    """`size_bytes` of shared memory at `address`.  **Nothing in Python may touch it**: a page that vanishes, because the file
    under it was cut or its disk is full, would end the process.  Only the engine's COPY may."""

    def __init__(self, path: Path, descriptor: int, size_bytes: int) -> None:
        """Takes over the descriptor.  Raises OSError."""
        self.path = path
        self.descriptor = descriptor
        self.size_bytes = size_bytes
        self._mapping, self.synchronous = _mapped(descriptor, size_bytes)
        anchor = ctypes.c_char.from_buffer(self._mapping)
        self.address: Final = ctypes.addressof(anchor)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(os.fstat(self.descriptor).st_mode)

    def flush(self) -> None:
        """What was written is on the medium.  Blocks; raises OSError.  Device-DAX has no page cache, and nothing to flush."""
        if self.is_file:
            os.fdatasync(self.descriptor)

    def close(self) -> None:
        """Unmap it, and give the descriptor and with it every lock on it back."""
        self._mapping.close()
        os.close(self.descriptor)


def open_device(path: Path) -> int:
    """A descriptor of a device or a file.  Raises ResourceError where there is neither."""
    try:
        return os.open(path, _OPEN)
    except OSError as error:
        if error.errno == errno.ENOENT:
            remedy = f"name a Device-DAX device, or make a file first: truncate -s 0 '{path}'"
        else:
            remedy = "name a Device-DAX device or a file that this server may read and write"
        raise ResourceError(f"device_path '{path}' cannot be opened ({error.strerror}); {remedy}") from None


def extent_of(path: Path, descriptor: int, wanted_bytes: int, devices: Path = CHARACTER_DEVICES) -> Extent:
    """What can be mapped: of a device what sysfs says, of a file its length.  An empty file becomes `wanted_bytes` long,
    without being given blocks.  Raises ResourceError for what is neither."""
    about = os.fstat(descriptor)
    if stat.S_ISREG(about.st_mode):
        if not about.st_size:
            os.ftruncate(descriptor, wanted_bytes)
        return Extent(about.st_size or wanted_bytes, mmap.PAGESIZE)
    facts = devices / f"{os.major(about.st_rdev)}:{os.minor(about.st_rdev)}"
    if not stat.S_ISCHR(about.st_mode) or (facts / "subsystem").resolve().name != "dax":
        raise ResourceError(
            f"device_path '{path}' is neither a Device-DAX device nor a file; a block device is for the adapter raw_block"
        )
    return Extent(_number(facts / "size"), max(_number(facts / "align", HUGE_PAGE_BYTES), HUGE_PAGE_BYTES))


def _number(file: Path, otherwise: int | None = None) -> int:
    with contextlib.suppress(FileNotFoundError):
        return int(file.read_text())
    if otherwise is None:
        raise ResourceError(f"'{file}' does not exist, so the size of the device is not known; this kernel is too old")
    return otherwise


def _mapped(descriptor: int, size_bytes: int) -> tuple[mmap.mmap, bool]:
    """The mapping, and whether the file system keeps its own books in step with it (MAP_SYNC, for files on DAX)."""
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    with contextlib.suppress(OSError):
        return mmap.mmap(descriptor, size_bytes, _MAP_SHARED_VALIDATE | _MAP_SYNC, protection), True
    return mmap.mmap(descriptor, size_bytes, mmap.MAP_SHARED, protection), False
