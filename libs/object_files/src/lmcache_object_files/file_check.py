"""What a look at one file says."""

from __future__ import annotations

import errno
import os
import stat
from typing import NamedTuple

from lmcache_core import HEADER_BYTES, Check, ObjectKey, Outcome, inspect

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class FileCheck(NamedTuple):
    """What a file's header says: DONE (ours, intact as far as the header goes), MISSING, DAMAGED, FOREIGN."""

    outcome: Outcome
    size: int = 0
    key: ObjectKey | None = None
    other_version: bool = False
    """FOREIGN, but an object of ours in another format version: what this server may replace or delete, not read."""


def check_file(path: str) -> FileCheck:
    """Look at a file's length and header page; the payload is not read.  Raises OSError when it cannot be looked at."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return FileCheck(Outcome.MISSING)
    except OSError as error:
        if is_in_the_way(error):
            return FileCheck(Outcome.FOREIGN)
        raise
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return FileCheck(Outcome.FOREIGN)
        page = os.pread(fd, HEADER_BYTES, 0)
    finally:
        os.close(fd)
    if not page.strip(b"\0"):
        # Nothing was ever written: what a loss of power leaves where a file was published but not on the medium.
        return FileCheck(Outcome.DAMAGED, status.st_size)
    header = inspect(page)
    if isinstance(header, Check):
        return FileCheck(header.outcome, status.st_size, other_version=header.other_version)
    if status.st_size != HEADER_BYTES + header.stored_bytes:
        return FileCheck(Outcome.DAMAGED, status.st_size, header.key)
    return FileCheck(Outcome.DONE, status.st_size, header.key)


def size_of(path: str) -> int | None:
    """How long the file is; None where there is none, or it is not a file.  Raises OSError for any other fault."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def is_in_the_way(error: OSError) -> bool:
    """A link, device or socket is in the file's place, or a file in its directory's place."""
    return error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO)


def is_full(error: OSError) -> bool:
    """The medium or the user's quota is full, or the file is too long."""
    return error.errno in _FULL
