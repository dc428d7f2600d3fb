"""Moves one object between lent memory and one file, without a copy in this process."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

DIRECT_ALIGN = 4096
"""What O_DIRECT is used with: lent buffers are aligned to no more, and no common device asks for more."""

# A FIFO or a link where a file belongs must neither block a thread nor lead elsewhere.
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class ObjectIO:
    """How files are read and written here; the same for the life of an adapter.  Any thread.  Raises OSError."""

    def __init__(self, *, direct: bool, fsync: bool, read_ahead_bytes: int | None) -> None:
        self.direct = direct
        self.fsync = fsync
        self._flags = os.O_DIRECT if direct else 0
        self._read_ahead_bytes = None if direct else read_ahead_bytes

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
        step = self._read_ahead_bytes or max(len(data), 1)
        at = 0
        while at < len(data):
            if self._read_ahead_bytes:
                os.posix_fadvise(fd, at + step, step, os.POSIX_FADV_WILLNEED)
            got = os.preadv(fd, [data[at : at + step]], at)
            if self.direct:
                got -= got % DIRECT_ALIGN
            if got <= 0:
                return False
            at += got
        return True


def accepts_direct(directory: Path) -> bool:
    """Does the file system of this directory take O_DIRECT, with our alignment?  Raises OSError for any other fault."""
    probe = str(directory / "probe.tmp")
    page = mmap.mmap(-1, DIRECT_ALIGN)
    try:
        fd = os.open(probe, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_DIRECT, 0o600)
        try:
            return os.pwrite(fd, page, 0) == DIRECT_ALIGN and os.preadv(fd, [page], 0) == DIRECT_ALIGN
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
            return False
        raise
    finally:
        page.close()
        if os.path.exists(probe):
            os.unlink(probe)
