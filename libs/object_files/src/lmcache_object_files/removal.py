"""Removes every object of a directory, for servers that are to leave nothing behind."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from lmcache_core import media_path
from lmcache_object_files.file_check import check_file
from lmcache_object_files.file_names import DIRECTORY_LEVELS
from lmcache_object_files.object_directory import ObjectDirectory, remove_file


def remove_objects(
    directory: ObjectDirectory, removed_one: Callable[[bytes], None], *, only_other_versions: bool = False
) -> int:
    """Every file whose name and header say that it is an object of ours, in whatever format version, damaged ones that were
    moved aside, and directories that are empty then; or files of other format versions alone.  `removed_one` gets the id of
    each.  Returns how many files it were.  Reads one header page for each.  Raises OSError, when all else is gone, where a file
    cannot be read or removed, and at once where this server no longer has the directory."""
    removed = 0
    faults: list[OSError] = []
    for file in directory.files():
        path = f"{directory.root}/{file.path}"
        if file.object_id is None:
            continue
        try:
            found = check_file(path)
            is_ours = not only_other_versions and found.key is not None and media_path(found.key) == file.path
            if is_ours or found.other_version:
                directory.require()
                removed += remove_file(path)
                removed_one(file.object_id)
        except OSError as error:
            directory.require()
            faults.append(error)
    directory.require()
    if not only_other_versions:
        _remove_empty(directory.root, 0, directory.own_names)
        removed += directory.remove_damaged()
    if faults:
        raise faults[0]
    return removed


def _remove_empty(directory: Path, level: int, skip: tuple[str, ...] = ()) -> None:
    """Directories of our names below this one, the deepest first."""
    if level == len(DIRECTORY_LEVELS):
        return
    for below in list(directory.iterdir()):
        if below.name in skip or not DIRECTORY_LEVELS[level].fullmatch(below.name):
            continue
        if below.is_dir() and not below.is_symlink():
            _remove_empty(below, level + 1)
            try:
                os.rmdir(below)
            except OSError:
                pass  # it has files of others
