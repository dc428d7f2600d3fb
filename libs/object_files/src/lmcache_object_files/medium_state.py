"""Can objects be written to the directory?  Found out by looking, and by trying where a store has failed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import Final, NamedTuple

from lmcache_core import Condition, Severity
from lmcache_object_files.file_check import is_full
from lmcache_object_files.object_directory import ObjectDirectory

PROBE_BYTES_MAX: Final = 1 << 20
_DENIED: Final = (errno.EACCES, errno.EPERM)


class _Failed(NamedTuple):
    """The last store that failed, and was not followed by a probe that succeeded."""

    error: OSError
    size: int


class MediumState:
    """`write_failed` is for any thread; `conditions` for one at a time, and asks the medium, which may block."""

    def __init__(self, directory: ObjectDirectory) -> None:
        self._directory = directory
        self._failed: _Failed | None = None

    def write_failed(self, error: OSError, size: int) -> None:
        """A file of `size` bytes could not be written or published."""
        self._failed = _Failed(error, size)

    def conditions(self) -> Iterator[Condition]:
        """What keeps objects from being stored now.  While a store has failed, each call tries to write up to a mebibyte, so
        that it is known when that works again, also where no other store comes."""
        root = self._directory.root
        try:
            if not self._directory.is_ours:
                yield _lost(os.path.lexists(root), str(root))
                return
            room = os.statvfs(root)
            if room.f_flag & os.ST_RDONLY:
                yield _unwritable(OSError(errno.EROFS, os.strerror(errno.EROFS)), 0, room, str(root))
            elif self._failed is not None or not room.f_bavail:
                yield from self._tried(room)
        except OSError as error:
            yield _unwritable(error, 0, None, str(root))

    def _tried(self, room: os.statvfs_result) -> Iterator[Condition]:
        failed = self._failed
        size = failed.size if failed else 1
        if failed is not None and failed.error.errno == errno.ENOSPC and room.f_bavail * room.f_frsize < size:
            yield _unwritable(failed.error, size, room, str(self._directory.root))
            return
        try:
            self._directory.probe(min(size, PROBE_BYTES_MAX))
        except OSError as error:
            yield _unwritable(error, size, room, str(self._directory.root))
        else:
            if self._failed is failed:
                self._failed = None


def _lost(is_there: bool, root: str) -> Condition:
    if is_there:
        return Condition(
            "medium_replaced",
            Severity.WARNING,
            f"'{root}' is another directory than the one that this server took; nothing is stored there",
            "give each server a directory of its own; remove and add the adapter, or restart the server, to take this one",
        )
    return Condition(
        "medium_gone",
        Severity.WARNING,
        f"'{root}' is not there any more; nothing is stored, and what it held is missed",
        "mount or move it back; where it was deleted, remove and add the adapter, or restart the server",
    )


def _unwritable(error: OSError, size: int, room: os.statvfs_result | None, root: str) -> Condition:
    words = error.strerror or str(error)
    if error.errno == errno.EROFS:
        return Condition(
            "medium_read_only",
            Severity.WARNING,
            f"the file system of '{root}' is read-only; what it holds is served",
            "see the kernel's log for why; remount it writable",
        )
    if is_full(error):
        free = f"; {room.f_bavail * room.f_frsize} of {room.f_blocks * room.f_frsize} bytes are free" if room else ""
        return Condition(
            "medium_full",
            Severity.WARNING,
            f"there is no room for {size} more bytes in '{root}' ({words}{free})",
            "free some space or raise the quota, or lower max_capacity_gb and give the adapter an eviction",
        )
    if error.errno in _DENIED:
        return Condition(
            "medium_denied",
            Severity.WARNING,
            f"this server may not write to '{root}' any more ({words}: '{error.filename or root}')",
            "give its user the permission back",
        )
    return Condition(
        "medium_broken",
        Severity.WARNING,
        f"'{root}' cannot be used ({words})",
        "see the kernel's log, and the disk or the server behind the mount",
    )
