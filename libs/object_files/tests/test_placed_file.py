"""Files that an engine writes and names by itself: room and index follow what came of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from libs.object_files.tests.stored import sealed, store, wait_known
from lmcache_core import HEADER_BYTES, ObjectKey, Outcome
from lmcache_devkit.borrowed_memory import object_key
from lmcache_object_files import ObjectFiles, PlacedFile

DONE, MISSING, REJECTED = Outcome.DONE, Outcome.MISSING, Outcome.REJECTED
OpenFiles = Callable[..., ObjectFiles]
SIZE = HEADER_BYTES + 100
KEY = object_key(0)


def place(files: ObjectFiles, key: ObjectKey = KEY) -> PlacedFile:
    wait_known(files)
    placed = files.place(key, SIZE)
    assert isinstance(placed, PlacedFile)
    return placed


def write(file: PlacedFile) -> None:
    """What an engine does."""
    Path(file.temporary).write_bytes(sealed(file.key, SIZE - HEADER_BYTES))
    os.link(file.temporary, file.path)
    os.unlink(file.temporary)


def used(files: ObjectFiles) -> tuple[int, int]:
    usage = files.usage()
    assert usage is not None
    return usage.objects, usage.used_bytes


@pytest.mark.parametrize("fsync", [False, True])
def test_a_file_that_was_placed_is_there_and_counted_once(open_files: OpenFiles, fsync: bool) -> None:
    files = open_files(fsync=fsync)
    file = place(files)
    assert not file.has_directories()
    file.make_directories()
    assert file.has_directories()
    write(file)
    file.placed()
    file.end()
    assert used(files) == (1, SIZE)
    assert files.contains(KEY)
    assert place(files, object_key(1)).path != file.path
    assert files.standing(KEY, SIZE) is DONE


def test_room_is_reserved_until_the_end_and_given_back_once(open_files: OpenFiles) -> None:
    files = open_files(max_capacity_gb=SIZE / 2**30)
    file = place(files)
    assert files.place(object_key(1), SIZE) is REJECTED
    file.end()
    file.end()
    assert used(files) == (0, 0)
    place(files, object_key(1)).end()


@pytest.mark.parametrize("written", [True, False])
def test_an_unknown_object_is_looked_at(open_files: OpenFiles, written: bool) -> None:
    files = open_files(max_capacity_gb=SIZE / 2**30)
    file = place(files)
    file.make_directories()
    if written:
        write(file)
    assert file.find_out() is written
    file.end()
    assert used(files) == ((1, SIZE) if written else (0, 0))
    assert files.contains(KEY) is written


def test_an_existing_file_is_kept_moved_aside_or_left(open_files: OpenFiles) -> None:
    files = open_files()
    file = place(files)
    file.make_directories()
    assert file.make_room() is MISSING
    Path(file.path).write_bytes(b"Dear diary")
    assert file.make_room() is REJECTED
    Path(file.path).write_bytes(sealed(KEY, SIZE - HEADER_BYTES)[:-1])
    assert file.make_room() is MISSING
    assert not Path(file.path).exists()
    file.end()
    assert store(files, KEY, SIZE - HEADER_BYTES) is DONE
    assert file.make_room() is DONE
    assert used(files) == (1, SIZE)


def test_directories_that_vanished_are_made_again_but_not_the_root(open_files: OpenFiles, root: Path) -> None:
    files = open_files()
    file = place(files)
    file.make_directories()
    shutil.rmtree(root / ".tmp")
    shutil.rmtree(Path(file.path).parents[2])
    file.make_directories()
    write(file)
    root.rename(root.with_name("away"))
    with pytest.raises(FileNotFoundError):
        file.make_directories()
    assert not root.exists()
    root.with_name("away").rename(root)
    file.end()
