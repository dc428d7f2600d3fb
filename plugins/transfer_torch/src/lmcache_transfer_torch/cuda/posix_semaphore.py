"""A counting semaphore of the C library: the GPU driver's threads post it without running any Python."""

from __future__ import annotations

import ctypes
import errno
import os
import time
from typing import Any, Final

_BYTES: Final = 32
"""Length of a sem_t, on every platform that a GPU driver is there for."""
_LIBC: Final[Any] = ctypes.CDLL(None, use_errno=True)
for _name in ("sem_init", "sem_post", "sem_wait", "sem_timedwait", "sem_destroy"):
    getattr(_LIBC, _name).restype = ctypes.c_int


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class PosixSemaphore:
    """It must outlive every post."""

    def __init__(self) -> None:
        self._memory = ctypes.create_string_buffer(_BYTES)
        self.address: int = ctypes.addressof(self._memory)
        self._check(_LIBC.sem_init(self._pointer, 0, 0))

    @property
    def _pointer(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.address)

    def post(self) -> None:
        self._check(_LIBC.sem_post(self._pointer))

    def wait(self, seconds: float | None) -> bool:
        """One post was taken; False when none came in time.  Blocks without the interpreter."""
        if seconds is None:
            while _LIBC.sem_wait(self._pointer):
                self._interrupted()
            return True
        end = time.time() + seconds  # the C library counts in wall-clock time; a jump of it makes this one wait wrong
        limit = _Time(int(end), int(end % 1 * 1e9))
        while _LIBC.sem_timedwait(self._pointer, ctypes.byref(limit)):
            if ctypes.get_errno() == errno.ETIMEDOUT:
                return False
            self._interrupted()
        return True

    @staticmethod
    def _interrupted() -> None:
        if ctypes.get_errno() != errno.EINTR:
            PosixSemaphore._check(-1)

    @staticmethod
    def _check(status: int) -> None:
        if status:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
