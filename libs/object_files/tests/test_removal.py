"""A server that is to leave nothing behind removes its objects, and nothing else."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from libs.object_files.tests.conftest import OpenFiles
from libs.object_files.tests.stored import store
from lmcache_core import Outcome, media_path
from lmcache_devkit.borrowed_memory import object_key
from lmcache_object_files import removal
from lmcache_object_files.file_check import FileCheck, check_file


def test_closing_keeps_what_is_stored_by_default(open_files: OpenFiles, root: Path) -> None:
    for keep, left in ((True, 3), (False, 0)):
        files = open_files(persist_enabled=keep)
        assert [store(files, object_key(number)) for number in range(3)] == [Outcome.DONE] * 3
        files.close()
        assert len(list(root.rglob("*.kv"))) == left


def test_damaged_files_and_empty_directories_go_too(open_files: OpenFiles, root: Path) -> None:
    files = open_files(persist_enabled=False)
    keys = [object_key(number) for number in range(3)]
    for key in keys:
        store(files, key)
    assert files.discard(keys[0], Outcome.DAMAGED)
    short = root / media_path(keys[1])
    short.write_bytes(short.read_bytes()[:-1])
    files.close()
    assert sorted(path.name for path in root.iterdir()) == [".damaged", ".lock", ".tmp"]
    assert list((root / ".damaged").iterdir()) == []


def test_what_is_not_ours_stays(open_files: OpenFiles, root: Path) -> None:
    files = open_files(persist_enabled=False)
    key, foreign_key = object_key(0), object_key(1)
    store(files, key)
    home = root / media_path(key)
    foreign = {
        root / "README": b"mine",
        home.with_suffix(".bak"): b"mine",
        root / media_path(foreign_key): b"Dear diary, " * 1_000,
        root / "copy-00000000" / "salt-00000000" / home.parent.name / home.name: home.read_bytes(),
        root / ".damaged" / "notes.txt": b"by hand",
    }
    for path, content in foreign.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    files.close()
    assert not home.exists()
    assert {path: path.read_bytes() for path in foreign} == foreign


def test_a_file_that_cannot_be_read_does_not_save_the_others(
    open_files: OpenFiles, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = open_files(persist_enabled=False)
    for number in range(4):
        store(files, object_key(number))
    first = str(min(root.rglob("*.kv")))

    def failing(path: str) -> FileCheck:
        if path == first:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return check_file(path)

    monkeypatch.setattr(removal, "check_file", failing)
    with pytest.raises(OSError, match="Input/output"):
        files.close()
    assert [str(path) for path in root.rglob("*.kv")] == [first]
    open_files().close()  # the directory was given back all the same


def test_a_server_that_could_not_be_opened_removes_nothing(open_files: OpenFiles, root: Path) -> None:
    files = open_files(persist_enabled=False)
    store(files, object_key(0))
    files.give_up()
    assert len(list(root.rglob("*.kv"))) == 1
