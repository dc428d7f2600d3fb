"""What is said of a file that was opened and is not the object, while others replace it."""

from __future__ import annotations

from pathlib import Path

import pytest

from libs.object_files.tests.conftest import OpenFiles
from libs.object_files.tests.stored import store, wait_known
from lmcache_core import Outcome, media_path
from lmcache_devkit.borrowed_memory import object_key
from lmcache_object_files import ObjectFiles

KEY = object_key(0)


@pytest.fixture
def files(open_files: OpenFiles) -> ObjectFiles:
    files = open_files()
    wait_known(files)
    assert store(files, KEY) is Outcome.DONE
    return files


@pytest.fixture
def place(root: Path) -> Path:
    return root / media_path(KEY)


def shorten(place: Path) -> None:
    place.write_bytes(place.read_bytes()[:-1])


def test_a_file_that_was_not_replaced_is_damaged_and_another_owners_is_foreign(files: ObjectFiles, place: Path) -> None:
    version = files.version(KEY)
    shorten(place)
    assert files.validation_failure(KEY, version) is Outcome.DAMAGED
    place.write_bytes(b"Dear diary")
    assert files.validation_failure(KEY, version) is Outcome.FOREIGN


def test_a_file_that_has_gone_meanwhile_is_missing(files: ObjectFiles, place: Path) -> None:
    version = files.version(KEY)
    shorten(place)
    assert files.discard(KEY, Outcome.DAMAGED)
    assert files.validation_failure(KEY, version) is Outcome.MISSING


def test_a_file_that_was_replaced_meanwhile_is_not_rejected_for_the_old_one(files: ObjectFiles, place: Path) -> None:
    version = files.version(KEY)
    shorten(place)
    assert store(files, KEY) is Outcome.DONE  # the short one is moved aside for it
    assert files.validation_failure(KEY, version) is Outcome.MISSING
    assert files.validation_failure(KEY, files.version(KEY)) is Outcome.DAMAGED


def test_what_has_gone_by_itself_is_forgotten_and_not_counted_as_damaged(files: ObjectFiles, place: Path) -> None:
    place.unlink()
    assert files.discard(KEY, Outcome.DAMAGED)
    assert not files.contains(KEY)
    assert files.counters()["damaged"] == 0
    assert files.counters()["bytes"] == 0
