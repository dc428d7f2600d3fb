"""What O_DIRECT asks for where objects lie, and whether an object of some length goes past the page cache.

A file system that asks for nothing (tmpfs) is taken at its word; one that does not say (no STATX_DIOALIGN, as network file
systems and kernels before 6.1) is tried."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from pathlib import Path
from typing import Final

ALIGN_BYTES_MIN: Final = 4096
"""Never less, though a device may take 512: with whole pages, a file's last block needs no read-modify-write on any of them."""
ALIGN_BYTES_MAX: Final = 2**20

_AT_EMPTY_PATH: Final = 0x1000
_STATX_DIOALIGN: Final = 0x2000
_STATX_BYTES: Final = 256
_MASK_AT: Final = 0
_DIO_MEMORY_ALIGN_AT: Final = 152
_DIO_OFFSET_ALIGN_AT: Final = 156
_REFUSALS: Final = (errno.EINVAL, errno.EOPNOTSUPP)


class DirectAlignment:
    """Which objects are moved with O_DIRECT, decided by their length alone.  Fixed; any thread."""

    def __init__(self, align_bytes: int) -> None:
        """Of memory, offsets and lengths; 0: the page cache for all."""
        self.align_bytes: Final = align_bytes

    def of(self, length: int) -> int:
        """The alignment to move an object of this length with, 0 where it goes through the page cache: one that is shorter
        than a block would be all bounce buffer."""
        return self.align_bytes if length >= self.align_bytes else 0


def find_alignment(directory: Path) -> int:
    """What O_DIRECT asks for in this directory, in bytes; 0 where it is not supported.  Raises OSError where no file can
    be made there."""
    path = directory / "probe.tmp"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_DIRECT, 0o600)
    except OSError as error:
        if error.errno in _REFUSALS:
            path.unlink(missing_ok=True)
            return 0
        raise
    try:
        reported = _reported(fd)
        return _tried(fd) if reported is None else reported
    finally:
        os.close(fd)
        path.unlink(missing_ok=True)


def _reported(fd: int) -> int | None:
    """What the kernel says of this file; None where it does not say."""
    libc = ctypes.CDLL(None, use_errno=True)
    answer = ctypes.create_string_buffer(_STATX_BYTES)
    if not hasattr(libc, "statx") or libc.statx(fd, b"", _AT_EMPTY_PATH, _STATX_DIOALIGN, answer):
        return None
    if not _u32(answer, _MASK_AT) & _STATX_DIOALIGN:
        return None
    memory, offset = _u32(answer, _DIO_MEMORY_ALIGN_AT), _u32(answer, _DIO_OFFSET_ALIGN_AT)
    return max(memory, offset, ALIGN_BYTES_MIN) if offset else 0


def _tried(fd: int) -> int:
    """The smallest alignment with which a block can be written and read back."""
    with mmap.mmap(-1, 2 * ALIGN_BYTES_MAX) as memory:
        align = ALIGN_BYTES_MIN
        while align <= ALIGN_BYTES_MAX:
            # mmap gives pages: larger alignments of memory are asked of L1 (--l1-align-bytes), not of this probe.
            with memoryview(memory) as whole, whole[:align] as block:
                if _takes(fd, block):
                    return align
            align *= 2
    return 0


def _takes(fd: int, block: memoryview) -> bool:
    try:
        return os.pwrite(fd, block, len(block)) == len(block) and os.preadv(fd, [block], len(block)) == len(block)
    except OSError as error:
        if error.errno in _REFUSALS:
            return False
        raise


def _u32(answer: ctypes.Array[ctypes.c_char], at: int) -> int:
    return int.from_bytes(answer.raw[at : at + 4], "little")
