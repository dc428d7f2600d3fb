"""The file of one object, open for one transfer."""

from __future__ import annotations

import os
import stat

from lmcache_l2_nixl.pieces import BLOCK_BYTES, Descriptors


class OpenFile:
    """Open from `create` or `find` to `close`, whichever of them came to an end.  Blocking; one thread at a time; raises
    OSError.  Made before it is opened, so that a caller that is cancelled meanwhile can still close it."""

    def __init__(self, path: str, *, direct: bool, splits: bool) -> None:
        """`direct`: past the page cache.  `splits`: except for partial blocks."""
        self._path = path
        self._direct = direct
        self._splits = direct and splits
        self._fds: list[int] = []
        self.size: int | None = None
        """None: it is not a plain file."""

    @property
    def descriptors(self) -> Descriptors:
        return Descriptors(*self._fds)

    def create(self, size: int) -> None:
        """A new file with room on the disk for so much: a full one says so here, as NIXL would not."""
        self._open(os.O_RDWR | os.O_CREAT | os.O_EXCL)
        os.posix_fallocate(self._fds[0], 0, size)
        self._open_rest(os.O_RDWR, size)
        self.size = size

    def find(self) -> None:
        """One that is there; no symbolic link is followed, and no FIFO waited for."""
        self._open(os.O_RDONLY | os.O_NONBLOCK)
        status = os.fstat(self._fds[0])
        if stat.S_ISREG(status.st_mode):
            self.size = status.st_size
            self._open_rest(os.O_RDONLY, self.size)

    def has_changed(self) -> bool:
        """Is it of another length than when it was opened?"""
        return os.fstat(self._fds[0]).st_size != self.size

    def close(self) -> None:
        """Again: nothing."""
        fds, self._fds = self._fds, []
        for fd in fds:
            os.close(fd)

    def _open(self, flags: int) -> None:
        flags |= os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_DIRECT if self._direct else 0)
        self._fds.append(os.open(self._path, flags, 0o600))

    def _open_rest(self, flags: int, size: int) -> None:
        """The same file once more, and no other that has taken its name since."""
        if self._splits and size % BLOCK_BYTES:
            self._fds.append(os.open(f"/proc/self/fd/{self._fds[0]}", flags | os.O_CLOEXEC))
