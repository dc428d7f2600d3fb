"""A system call on mapped pages that Python has no name for."""

from __future__ import annotations

import ctypes
import os

_MADV_POPULATE_WRITE = 23  # Linux 5.14

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def populate(address: int, length: int) -> None:
    """Allocate these pages and map them; what they hold stays.  Takes long, other threads run meanwhile.  Raises OSError
    where the medium is full, or this kernel cannot do it (EINVAL)."""
    if _libc.madvise(address, length, _MADV_POPULATE_WRITE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
