"""A file system that passes everything on to a directory, and fails on cue: what a broken medium looks like from above.

Usage: python -m tests.media_faults.cued_passthrough DIRECTORY MOUNT_POINT CUE

CUE is a file: empty while all is well, else a line `KIND ERRNO` with a kind of `FAILING`.  It is read for every operation, and
errors are those of the kernel's own path, whatever library or engine is above."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import Any, Final

import mfusepy

CHANGES: Final = frozenset(
    ("chmod", "create", "fallocate", "fsync", "link", "mkdir", "rename", "rmdir", "symlink", "truncate", "unlink")
    + ("utimens", "write")
)
GROWTH: Final = frozenset(("create", "fallocate", "link", "mkdir", "symlink", "write"))
READS: Final = frozenset(("getattr", "open", "opendir", "read", "readdir", "statfs"))
FAILING: Final = {"changes": CHANGES, "growth": GROWTH, "all": CHANGES | READS}
"""Operations that fail, by the kind of the cue."""


class CuedPassthrough(mfusepy.Operations):  # type: ignore[misc]  # the library says nothing of its types
    """One thread of libfuse's at a time or several: nothing is kept here but paths."""

    use_ns = True

    def __init__(self, root: str, cue: str) -> None:
        self._root = root
        self._cue = os.open(cue, os.O_RDONLY)

    def __getattribute__(self, name: str) -> Any:
        method = super().__getattribute__(name)
        return _cued(self._cue, name, method) if name in CHANGES | READS else method

    def path(self, path: str) -> str:
        return self._root + path

    # --- names

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        found = os.lstat(self.path(path)) if fh is None else os.fstat(fh)
        names = ("st_mode", "st_nlink", "st_uid", "st_gid", "st_size", "st_blocks", "st_ino")
        times = {f"st_{kind}time": getattr(found, f"st_{kind}time_ns") for kind in ("a", "m", "c")}
        return {name: getattr(found, name) for name in names} | times

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *os.listdir(self.path(path))]

    def statfs(self, path: str) -> dict[str, int]:
        found = os.statvfs(self.path(path))
        names = ("f_bavail", "f_bfree", "f_blocks", "f_bsize", "f_favail", "f_ffree", "f_files", "f_flag", "f_frsize")
        return {name: getattr(found, name) for name in (*names, "f_namemax")}

    def mkdir(self, path: str, mode: int) -> None:
        os.mkdir(self.path(path), mode)

    def rmdir(self, path: str) -> None:
        os.rmdir(self.path(path))

    def unlink(self, path: str) -> None:
        os.unlink(self.path(path))

    def rename(self, old: str, new: str) -> None:
        os.rename(self.path(old), self.path(new))

    def link(self, target: str, source: str) -> None:
        os.link(self.path(source), self.path(target))

    def chmod(self, path: str, mode: int) -> None:
        os.chmod(self.path(path), mode)

    def utimens(self, path: str, times: tuple[int, int]) -> None:
        os.utime(self.path(path), ns=times)

    # --- bytes

    def create(self, path: str, mode: int, flags: int) -> int:
        return os.open(self.path(path), os.O_RDWR | os.O_CREAT | os.O_TRUNC, mode)

    def open(self, path: str, flags: int) -> int:
        return os.open(self.path(path), flags & ~(os.O_DIRECT | os.O_CREAT | os.O_EXCL))

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return os.pread(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        return os.pwrite(fh, data, offset)

    def truncate(self, path: str, length: int, fh: int | None = None) -> None:
        os.truncate(self.path(path) if fh is None else fh, length)

    def fallocate(self, path: str, mode: int, offset: int, length: int, fh: int) -> None:
        if mode:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        os.posix_fallocate(fh, offset, length)

    def fsync(self, path: str, datasync: int, fh: int) -> None:
        os.fsync(fh)

    def release(self, path: str, fh: int) -> None:
        os.close(fh)


def _cued(cue: int, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """The operation, or the error of the cue."""

    def operation(path: str, *arguments: Any, **named: Any) -> Any:
        words = os.pread(cue, 100, 0).split()
        if words and name in FAILING[words[0].decode()] and not (name == "getattr" and path == "/"):
            number = getattr(errno, words[1].decode())
            raise OSError(number, os.strerror(number))
        return method(path, *arguments, **named)

    return operation


if __name__ == "__main__":
    directory, mount_point, cue_file = sys.argv[1:]
    mfusepy.FUSE(
        CuedPassthrough(directory, cue_file),
        mount_point,
        foreground=True,
        attr_timeout=0,
        entry_timeout=0,
        negative_timeout=0,
    )
