"""A server whose directory has become another server's changes nothing in it, not even when it stops."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from libs.object_files.tests.conftest import OpenFiles
from libs.object_files.tests.stored import store, wait_known
from lmcache_core import AdapterContext, Outcome, media_path
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context, object_key
from lmcache_object_files import DirectoryLock, FileSettings, ObjectFiles, open_object_files

KEYS = [object_key(number) for number in range(8)]


def remove_all(root: Path) -> None:
    shutil.rmtree(root)


def move_away(root: Path) -> None:
    root.rename(root.parent / "moved")


def remove_lock(root: Path) -> None:
    (root / ".lock").unlink()


REPLACEMENTS = [remove_all, move_away, remove_lock]


def second_server(root: Path) -> ObjectFiles:
    context = adapter_context(BorrowedMemory(4096), name="second", boot_id="second-boot")
    files = open_object_files(FileSettings.model_validate({"base_path": str(root)}), context)
    wait_known(files)
    return files


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("replace", REPLACEMENTS)
def test_a_replaced_directory_is_left_alone_from_then_on(
    open_files: OpenFiles, root: Path, replace: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    first = open_files(persist_enabled=False)
    wait_known(first)
    assert [store(first, key) for key in KEYS[:2]] == [Outcome.DONE] * 2
    replace(root)
    second = second_server(root)
    assert [store(second, key) for key in KEYS[1:5]] == [Outcome.DONE] * 4
    before = contents(root)
    with pytest.raises(OSError, match="no longer"):
        store(first, KEYS[6])
    with pytest.raises(OSError, match="no longer"):
        first.delete(KEYS[1])
    with pytest.raises(OSError, match="no longer"):
        first.discard(KEYS[1], Outcome.DAMAGED)
    first.close()  # it was to leave nothing behind
    assert contents(root) == before
    assert "objects are left" in caplog.text
    assert second.list_keys(None, 100).keys
    second.close()


@pytest.mark.parametrize("replace", REPLACEMENTS)
def test_a_replaced_directory_keeps_the_temporaries_of_its_new_owner(
    root: Path, context: AdapterContext, replace: Callable[[Path], None]
) -> None:
    files = open_object_files(FileSettings.model_validate({"base_path": str(root)}), context)
    wait_known(files)
    replace(root)
    second = second_server(root)
    admitted = second.admit(KEYS[0], 5_000)
    assert not isinstance(admitted, Outcome)
    with admitted as pending:
        Path(pending.path).write_bytes(b"half")
        assert not list(files.directory.left_behind())
        assert Path(pending.path).exists()
    files.give_up()
    second.close()


def test_objects_are_not_removed_once_the_directory_is_replaced_meanwhile(
    open_files: OpenFiles, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = open_files(persist_enabled=False)
    assert [store(first, key) for key in KEYS] == [Outcome.DONE] * 8
    unlink = os.unlink

    def unlink_and_lose(path: str) -> None:
        unlink(path)
        monkeypatch.undo()
        remove_lock(root)

    monkeypatch.setattr(os, "unlink", unlink_and_lose)
    with pytest.raises(OSError, match="no longer"):
        first.close()
    assert len(list(root.rglob("*.kv"))) == 7


def test_a_lock_is_taken_only_where_it_has_its_name(
    root: Path, context: AdapterContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    root.mkdir()
    flock = fcntl.flock

    def overtaken(fd: int, how: int) -> None:
        monkeypatch.undo()
        flock(fd, how)
        remove_lock(root)  # by another process, between open and lock
        (root / ".lock").touch()

    monkeypatch.setattr(fcntl, "flock", overtaken)
    lock = DirectoryLock.take(root, context)
    assert lock.is_held
    assert (root / ".lock").read_bytes(), "it says who has it"
    lock.release()


def test_a_moved_directory_that_comes_back_is_ours_again(open_files: OpenFiles, root: Path) -> None:
    files = open_files()
    wait_known(files)
    assert store(files, KEYS[0]) is Outcome.DONE
    move_away(root)
    with pytest.raises(OSError, match="no longer"):
        store(files, KEYS[1])
    (root.parent / "moved").rename(root)
    assert store(files, KEYS[1]) is Outcome.DONE
    assert (root / media_path(KEYS[1])).exists()
