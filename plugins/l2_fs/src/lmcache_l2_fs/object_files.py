"""Finds files of objects below a root, and tells them from what is not ours."""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from lmcache_core import HEADER_BYTES, Check, ObjectKey, Outcome, inspect

_NAMESPACE = re.compile(r".+-[0-9a-f]{8}")
_LEVELS = (_NAMESPACE, _NAMESPACE, re.compile(r"[0-9a-f]{2}"))
_OBJECT = re.compile(r"([0-9a-f]{32})\.kv")


class FoundFile(NamedTuple):
    """Something below the root; `object_id` is None where it cannot be an object of ours."""

    path: str
    object_id: bytes | None
    size: int


class Finding(NamedTuple):
    """What a look at a file's header says: DONE (ours, intact as far as the header goes), MISSING, DAMAGED, FOREIGN."""

    outcome: Outcome
    size: int = 0
    key: ObjectKey | None = None


def examine(path: str) -> Finding:
    """Look at a file's length and header page; the payload is not read.  Raises OSError when it cannot be looked at."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return Finding(Outcome.MISSING)
    except OSError as error:
        if is_in_the_way(error):
            return Finding(Outcome.FOREIGN)
        raise
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return Finding(Outcome.FOREIGN)
        page = os.pread(fd, HEADER_BYTES, 0)
    finally:
        os.close(fd)
    if not page.strip(b"\0"):
        # Nothing was ever written: what a loss of power leaves where a file was published but not on the medium.
        return Finding(Outcome.DAMAGED, status.st_size)
    header = inspect(page)
    if isinstance(header, Check):
        return Finding(header.outcome, status.st_size)
    if status.st_size != HEADER_BYTES + header.stored_bytes:
        return Finding(Outcome.DAMAGED, status.st_size, header.key)
    return Finding(Outcome.DONE, status.st_size, header.key)


def is_in_the_way(error: OSError) -> bool:
    """A link, device or socket stands where the file, or a file where its directory belongs."""
    return error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO)


def walk(root: Path, skip: Sequence[str], log: logging.Logger, after: str | None = None) -> Iterator[FoundFile]:
    """Every file below the root in the order of its path, from the one behind `after` on; `skip` are names directly
    below the root.  A directory that cannot be read is logged and left out; what comes or goes meanwhile may be missed,
    nothing else."""
    yield from _walk(str(root), "", 0, after.split("/") if after else [], frozenset(skip), log)


def _walk(
    root: str, below: str, level: int, after: Sequence[str], skip: frozenset[str], log: logging.Logger
) -> Iterator[FoundFile]:
    first = after[0] if after else ""
    for entry in _entries(f"{root}/{below}", log):
        path = f"{below}{entry.name}"
        if entry.name in skip or entry.name < first:
            continue
        if level == len(_LEVELS):
            if entry.name != first and (file := _object(entry, path)):
                yield file
        elif _LEVELS[level].fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
            rest = after[1:] if entry.name == first else ()
            yield from _walk(root, f"{path}/", level + 1, rest, frozenset(), log)
        elif entry.name != first:
            yield FoundFile(path, None, 0)


def _entries(directory: str, log: logging.Logger) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError:
        return []
    except OSError as error:
        log.warning("directory left out, its objects are not known directory=%r error=%s", directory, error.strerror)
        return []


def _object(entry: os.DirEntry[str], path: str) -> FoundFile | None:
    name = _OBJECT.fullmatch(entry.name)
    fan_out = path.rsplit("/", 2)[-2]
    try:
        if name is None or not entry.is_file(follow_symlinks=False) or not entry.name.startswith(fan_out):
            return FoundFile(path, None, 0)
        return FoundFile(path, bytes.fromhex(name[1]), entry.stat(follow_symlinks=False).st_size)
    except FileNotFoundError:
        return None
