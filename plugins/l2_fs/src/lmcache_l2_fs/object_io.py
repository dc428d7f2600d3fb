"""Moves one object between lent memory and one file, without a copy in this process."""

from __future__ import annotations

import errno
import mmap
import os

from lmcache_object_files import DIRECT_ALIGN

# A FIFO or a link where a file belongs must neither block a thread nor lead elsewhere.
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class ObjectIO:
    """How files are read and written here; the same for the life of an adapter.  Any thread.  Raises OSError."""

    def __init__(self, *, direct: bool, fsync: bool, read_ahead_bytes: int | None) -> None:
        """`read_ahead_bytes`: of a file that is read, where it is not read `direct`; None: all of it."""
        self.direct = direct
        self.fsync = fsync
        self._flags = os.O_DIRECT if direct else 0
        self._read_ahead_bytes = read_ahead_bytes

    def create(self, path: str, data: memoryview) -> None:
        """Write a new file.  What is left after an error is the caller's to remove."""
        fd = os.open(path, _CREATE | self._flags, 0o600)
        try:
            whole = len(data) - len(data) % DIRECT_ALIGN if self.direct else len(data)
            self._write(fd, data[:whole])
            if whole < len(data):
                with mmap.mmap(-1, DIRECT_ALIGN) as page:
                    page[: len(data) - whole] = bytes(data[whole:])
                    if os.pwrite(fd, page, whole) < DIRECT_ALIGN:
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.ftruncate(fd, len(data))
            if self.fsync:
                os.fsync(fd)
        finally:
            os.close(fd)  # network file systems may report a full disk only here

    def open(self, path: str) -> int:
        return os.open(path, _READ | self._flags)

    def read(self, fd: int, data: memoryview) -> bool:
        """Fill `data` from the start of the file.  False when the file ends before."""
        whole = len(data) - len(data) % DIRECT_ALIGN if self.direct else len(data)
        if not self._read(fd, data[:whole]):
            return False
        if whole < len(data):
            with mmap.mmap(-1, DIRECT_ALIGN) as page:
                if os.preadv(fd, [page], whole) < len(data) - whole:
                    return False
                data[whole:] = page[: len(data) - whole]
        return True

    def _write(self, fd: int, data: memoryview) -> None:
        at = 0
        while at < len(data):
            written = os.pwrite(fd, data[at:], at)
            if self.direct:
                written -= written % DIRECT_ALIGN  # the rest is written again: an offset must stay aligned
            if written <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            at += written

    def _read(self, fd: int, data: memoryview) -> bool:
        if not self.direct:  # or the kernel fetches little by little, and waits for each part
            os.posix_fadvise(fd, 0, min(self._read_ahead_bytes or len(data), len(data)), os.POSIX_FADV_WILLNEED)
        at = 0
        while at < len(data):
            got = os.preadv(fd, [data[at:]], at)
            if self.direct:
                got -= got % DIRECT_ALIGN
            if got <= 0:
                return False
            at += got
        return True
