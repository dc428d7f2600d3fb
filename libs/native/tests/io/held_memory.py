"""Memory whose first touch waits until a test lets it pass: an operation on it is under way for as long as it likes."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct

import pytest

from libs.native.tests.io.io_rig import address_of

_SYS_USERFAULTFD = 323 if os.uname().machine == "x86_64" else 282
_USER_MODE_ONLY = 1
_API, _REGISTER, _ZEROPAGE = 0xC018AA3F, 0xC020AA00, 0xC020AA04
_MISSING = 1
PAGE = 4096


class HeldMemory:
    """`length` bytes at which every reader blocks before `release`; afterwards they are zero.  Skips where the system has no
    userfaultfd."""

    def __init__(self, length: int = PAGE) -> None:
        self.length = length
        self._pages = mmap.mmap(-1, length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.address = address_of(self._pages)
        self._fd = ctypes.CDLL(None, use_errno=True).syscall(_SYS_USERFAULTFD, os.O_CLOEXEC | _USER_MODE_ONLY)
        if self._fd < 0:
            pytest.skip("userfaultfd is not allowed here")
        fcntl.ioctl(self._fd, _API, struct.pack("QQQ", 0xAA, 0, 0))
        fcntl.ioctl(self._fd, _REGISTER, struct.pack("QQQQ", self.address, length, _MISSING, 0))

    def release(self) -> None:
        """For good; once."""
        fcntl.ioctl(self._fd, _ZEROPAGE, struct.pack("QQQq", self.address, self.length, 0, 0))
        os.close(self._fd)
