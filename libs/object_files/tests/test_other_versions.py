"""An object of ours in another format version is not read, and makes room for the next store or an explicit delete."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from libs.object_files.tests.conftest import OpenFiles
from libs.object_files.tests.stored import of_version, sealed, store, wait_known
from lmcache_core import Outcome, media_path
from lmcache_devkit.borrowed_memory import object_key
from lmcache_object_files import ObjectFiles

KEYS = [object_key(number) for number in range(40)]


@pytest.fixture
def files(open_files: OpenFiles, root: Path) -> ObjectFiles:
    """All objects are of version 2, as a newer server leaves them, and those of even numbers were loaded and refused."""
    for key in KEYS:
        path = root / media_path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(of_version(2, sealed(key, 100)))
    files = open_files()
    wait_known(files)
    for key in KEYS[::2]:
        assert files.validation_failure(key, files.version(key)) is Outcome.FOREIGN
        assert files.discard(key, Outcome.FOREIGN)
    return files


def kept(root: Path) -> int:
    return len(list(root.rglob("*.kv")))


def test_it_is_counted_once_however_often_it_is_met(files: ObjectFiles, root: Path) -> None:
    for _ in range(3):
        for key in KEYS[::2]:
            assert files.discard(key, Outcome.FOREIGN)
    counts = files.counters()
    assert (counts["other_version"], counts["foreign"], counts["objects"]) == (20, 0, 20)
    assert kept(root) == 40, "it is the next store's to replace"


def test_the_next_store_of_its_key_replaces_it(files: ObjectFiles, root: Path) -> None:
    for key in KEYS:
        assert store(files, key) is Outcome.DONE
        assert (root / media_path(key)).read_bytes() == sealed(key, 100)
    counts = files.counters()
    assert (counts["other_version"], counts["foreign"], counts["objects"]) == (0, 0, 40)
    assert kept(root) == 40


def test_an_explicit_delete_removes_it(files: ObjectFiles, root: Path) -> None:
    assert [files.delete(key) for key in KEYS] == [Outcome.DONE] * 40
    assert kept(root) == 0
    assert files.counters()["other_version"] == 0
    assert files.delete(KEYS[0]) is Outcome.MISSING


def test_deleting_everything_removes_those_that_no_key_names(files: ObjectFiles, root: Path) -> None:
    assert store(files, KEYS[0]) is Outcome.DONE
    strange = root / media_path(object_key(99))
    strange.parent.mkdir(parents=True, exist_ok=True)
    strange.write_bytes(b"Dear diary, " * 1000)
    assert files.list_keys(None, 100).keys == (KEYS[0],)
    assert files.delete_other_versions() == 39
    assert files.counters()["other_version"] == 0
    assert files.usage() == (4196, None, 1)
    assert strange.exists()
    assert kept(root) == 2


def test_a_server_that_keeps_nothing_removes_it_too(open_files: OpenFiles, files: ObjectFiles, root: Path) -> None:
    files.close()
    files = open_files(persist_enabled=False)
    wait_known(files)
    files.close()
    assert kept(root) == 0


def test_a_foreign_file_is_counted_once_and_never_replaced(open_files: OpenFiles, root: Path) -> None:
    path = root / media_path(KEYS[0])
    path.parent.mkdir(parents=True)
    path.write_bytes(b"Dear diary, " * 1000)
    files = open_files()
    wait_known(files)
    assert files.discard(KEYS[0], Outcome.FOREIGN)
    for _ in range(13):
        assert store(files, KEYS[0]) is Outcome.REJECTED
    assert files.delete(KEYS[0]) is Outcome.MISSING
    assert files.counters()["foreign"] == 1
    assert path.exists()
    shutil.rmtree(path.parent)
    assert store(files, KEYS[0]) is Outcome.DONE
