"""Goes through the files below a root in the order of their paths, from any of them on."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from lmcache_object_files.file_names import DIRECTORY_LEVELS, FoundFile, object_id_of


def walk(root: Path, skip: Sequence[str], log: logging.Logger, after: str | None = None) -> Iterator[FoundFile]:
    """Every file below the root in the order of its path, from the one behind `after` on; `skip` are names directly
    below the root.  A directory or file that cannot be read is logged and left out; what comes or goes meanwhile may be missed,
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
        if level == len(DIRECTORY_LEVELS):
            if entry.name != first and (file := _readable(entry, path, below[-3:-1], log)):
                yield file
        elif DIRECTORY_LEVELS[level].fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
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


def _readable(entry: os.DirEntry[str], path: str, fan_out: str, log: logging.Logger) -> FoundFile | None:
    try:
        return found_file(entry, path, fan_out)
    except OSError as error:
        log.warning("file left out, it cannot be looked at file=%r error=%s", path, error.strerror)
        return None


def found_file(entry: os.DirEntry[str], path: str, fan_out: str) -> FoundFile | None:
    """An entry of a directory of the last level, which is called `fan_out`; None where it has gone meanwhile.  Raises
    OSError."""
    object_id = object_id_of(entry.name, fan_out)
    try:
        if object_id is None or not entry.is_file(follow_symlinks=False):
            return FoundFile(path, None, 0)
        return FoundFile(path, object_id, entry.stat(follow_symlinks=False).st_size)
    except FileNotFoundError:
        return None
