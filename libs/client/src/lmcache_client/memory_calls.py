"""System calls on a stretch of this process's memory that Python has no function for, or holds its lock in."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
from collections.abc import Sequence

_MADV_POPULATE_READ, _MADV_POPULATE_WRITE = 22, 23  # Linux 5.14; the mmap module has no names for them
_MBIND = {"x86_64": 237, "aarch64": 235}
_WORD_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.syscall.restype = ctypes.c_long
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def advise_huge_pages(address: int, length: int) -> None:
    """The kernel may back this stretch with transparent huge pages.  Raises OSError where it knows none."""
    _check(_libc.madvise(address, length, mmap.MADV_HUGEPAGE))


def populate(address: int, length: int) -> bool:
    """Allocate and map the pages of this stretch, which keeps its content.  Takes long, other threads run meanwhile.
    False when this kernel cannot be asked to.  Raises OSError when the memory is not available."""
    try:
        _check(_libc.madvise(address, length, _MADV_POPULATE_WRITE))
    except OSError as error:
        if error.errno == errno.EINVAL:
            return False
        raise
    return True


def fetch_pages(address: int, length: int) -> None:
    """Have the pages of this stretch of a mapped file in memory.  Waits for the disk, other threads run meanwhile.  Raises
    OSError when they cannot be read: touching them would end the process.  Does nothing where this kernel cannot be
    asked to (before Linux 5.14)."""
    try:
        _check(_libc.madvise(address, length, _MADV_POPULATE_READ))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise


def allocate_file(descriptor: int, length: int) -> None:
    """Room on the disk for the first `length` bytes of a file, which becomes as long.  Other threads run meanwhile.  Raises
    OSError when there is none, and where the file system cannot do it at once: `os.posix_fallocate` would write to every
    block then, over what others write meanwhile."""
    while _libc.fallocate(descriptor, 0, 0, length) != 0:
        if (number := ctypes.get_errno()) != errno.EINTR:
            raise OSError(number, os.strerror(number))


def bind_memory(address: int, length: int, mode: int, nodes: Sequence[int]) -> None:
    """Set the memory policy (mbind) of pages that are not allocated yet.  Raises OSError where that cannot be done."""
    number = _MBIND.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    words = max(nodes, default=0) // _WORD_BITS + 1
    mask = (ctypes.c_ulong * words)()
    for node in nodes:
        mask[node // _WORD_BITS] |= 1 << node % _WORD_BITS
    bits = ctypes.c_ulong(words * _WORD_BITS + 1)  # the kernel looks at one less
    where, size = ctypes.c_void_p(address), ctypes.c_size_t(length)
    chosen = mask if nodes else None
    _check(_libc.syscall(ctypes.c_long(number), where, size, ctypes.c_long(mode), chosen, bits, ctypes.c_uint(0)))


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
