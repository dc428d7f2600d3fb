"""A directory serves while it is learned, and what cannot be read does no harm."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from libs.object_files.tests.conftest import OpenFiles
from libs.object_files.tests.stored import sealed, store, wait_known
from lmcache_core import HEADER_BYTES, AdapterContext, ObjectKey, Outcome, media_path
from lmcache_devkit.borrowed_memory import object_key
from lmcache_object_files import DirectoryLock, ObjectDirectory, ObjectFiles, ObjectIndex, Recovery, recovery

KEYS = [object_key(number) for number in range(6)]
SIZE = HEADER_BYTES + 100


class Opened:
    """Files whose recovery takes a step on request only."""

    def __init__(self, root: Path, context: AdapterContext, capacity_bytes: int | None = None) -> None:
        lock = DirectoryLock.take(root, context)
        directory = ObjectDirectory(lock, ".tmp", context)
        index = ObjectIndex(capacity_bytes)
        self.files = ObjectFiles(directory, lock, index, context, durable=False, keep=True)
        self.foreign: list[int] = []
        self.steps = Recovery(directory, index, self.foreign.append, context).steps()

    def finish(self) -> list[float]:
        """Returns the rests that were asked for."""
        return list(self.steps)


@pytest.fixture
def stored(root: Path) -> list[ObjectKey]:
    """Objects of a server that has gone."""
    for key in KEYS:
        put_file(root, key)
    return KEYS


@pytest.fixture
def opened(root: Path, context: AdapterContext, stored: list[ObjectKey]) -> Iterator[Opened]:
    opened = Opened(root, context)
    yield opened
    opened.files.give_up()


def put_file(root: Path, key: ObjectKey) -> Path:
    path = root / media_path(key)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(sealed(key, 100))
    return path


def test_before_the_first_step_everything_is_found_and_nothing_is_claimed(opened: Opened) -> None:
    files = opened.files
    assert files.usage() is None
    assert files.counters()["recovering"] == 1
    page = files.list_keys(None, 100)
    assert set(page.keys) == set(KEYS)
    assert page.sizes == (SIZE,) * len(KEYS)
    assert files.contains(KEYS[0])
    assert not files.contains(object_key(99))
    assert store(files, KEYS[1]) is Outcome.DONE, "it is there already"
    assert files.delete(KEYS[2]) is Outcome.DONE
    assert not files.contains(KEYS[2])
    assert files.delete(KEYS[2]) is Outcome.MISSING
    opened.finish()
    assert files.recovered
    assert files.usage() == (5 * SIZE, None, 5)
    assert files.counters()["recovering"] == 0


def test_a_lookup_of_a_link_or_a_directory_is_a_miss_before_it_is_known(opened: Opened, root: Path) -> None:
    place = root / media_path(KEYS[0])
    place.unlink()
    place.symlink_to(root / media_path(KEYS[1]))
    assert not opened.files.contains(KEYS[0])
    place.unlink()
    place.mkdir()
    assert not opened.files.contains(KEYS[0])


def test_the_capacity_counts_from_the_moment_that_something_is_known(
    root: Path, context: AdapterContext, stored: list[ObjectKey]
) -> None:
    opened = Opened(root, context, capacity_bytes=len(stored) * SIZE)
    try:
        opened.finish()
        assert store(opened.files, object_key(50)) is Outcome.REJECTED
        assert opened.files.delete(stored[0]) is Outcome.DONE
        assert store(opened.files, object_key(50)) is Outcome.DONE
    finally:
        opened.files.give_up()


def test_a_copied_directory_is_foreign_and_its_files_count_for_nothing(opened: Opened, root: Path) -> None:
    model = media_path(KEYS[0]).split("/")[0]
    shutil.copytree(root / model, root / "copy-00000000")
    opened.finish()
    assert opened.files.usage() == (6 * SIZE, None, 6)
    assert sum(opened.foreign) == 6
    assert len(list((root / "copy-00000000").rglob("*.kv"))) == 6


def test_a_directory_that_fails_is_tried_again_until_it_answers(
    opened: Opened, root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = str((root / media_path(KEYS[0])).parent)
    faults = [errno.EIO, errno.ESTALE]
    system_open = os.open

    def failing(path: str, *rest: int) -> int:
        if str(path).rstrip("/") == broken and faults:
            raise OSError(faults[-1], os.strerror(faults.pop()), path)
        return system_open(path, *rest)

    monkeypatch.setattr(os, "open", failing)
    rests = opened.finish()
    assert [rest for rest in rests if rest >= 1] == [1.0, 4.0]
    assert "tried again" in caplog.text
    assert opened.files.usage() == (6 * SIZE, None, 6)


def test_a_directory_that_never_answers_is_left_out_in_the_end(
    opened: Opened, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = str((root / media_path(KEYS[0])).parent)
    system_open = os.open

    def failing(path: str, *rest: int) -> int:
        if str(path).rstrip("/") == broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return system_open(path, *rest)

    monkeypatch.setattr(os, "open", failing)
    rests = opened.finish()
    assert [rest for rest in rests if rest >= 1] == list(recovery.RETRY_SECONDS)
    usage = opened.files.usage()
    assert usage is not None
    assert 0 < usage.objects < 6


def test_a_root_that_vanishes_while_it_is_read_is_waited_for(opened: Opened, root: Path) -> None:
    next(opened.steps)
    away = root.with_name("away")
    root.rename(away)
    root.mkdir()  # what is left of a mount: an empty directory
    assert any(rest >= 1 for rest in (next(opened.steps) for _ in range(8)))
    assert opened.files.usage() is None
    root.rmdir()
    away.rename(root)
    opened.finish()
    assert opened.files.usage() == (6 * SIZE, None, 6)


def test_in_a_root_that_has_vanished_nothing_is_missing_and_nothing_is_made(opened: Opened, root: Path) -> None:
    opened.finish()
    away = root.with_name("away")
    root.rename(away)
    root.mkdir()
    with pytest.raises(FileNotFoundError, match="no longer"):
        opened.files.delete(KEYS[0])
    gone = FileNotFoundError(errno.ENOENT, "no such file")
    with pytest.raises(FileNotFoundError, match="no longer"):
        opened.files.not_opened(KEYS[0], opened.files.version(KEYS[0]), gone)
    admitted = opened.files.admit(object_key(60), SIZE)
    assert not isinstance(admitted, Outcome)
    with admitted as pending, pytest.raises(FileNotFoundError, match="no longer"):
        pending.make_directory()
    assert list(root.iterdir()) == []
    root.rmdir()
    away.rename(root)
    assert opened.files.usage() == (6 * SIZE, None, 6)


def test_what_crashed_writers_left_goes_and_what_is_written_now_stays(opened: Opened, root: Path) -> None:
    dead = root / ".tmp" / "dead-boot"
    dead.mkdir()
    (dead / f"{'a' * 32}.0.tmp").write_bytes(b"half")
    (dead / "letter.txt").write_bytes(b"mine")
    admitted = opened.files.admit(object_key(60), SIZE)
    assert not isinstance(admitted, Outcome)
    with admitted as pending:
        Path(pending.path).write_bytes(sealed(pending.key, 100))
        opened.finish()
        assert [path.name for path in dead.iterdir()] == ["letter.txt"]
        assert pending.publish() is Outcome.DONE


def test_the_thread_learns_everything_and_ends(open_files: OpenFiles, stored: list[ObjectKey]) -> None:
    files = open_files()
    wait_known(files)
    assert files.usage() == (6 * SIZE, None, 6)
    files.close()
    assert not recovery_threads()


def test_closing_ends_a_recovery_that_waits_for_a_disk(
    open_files: OpenFiles, stored: list[ObjectKey], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(path: str) -> Iterator[int]:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    monkeypatch.setattr(recovery, "_open_directory", failing)
    files = open_files()
    assert files.contains(stored[0])
    files.close()
    assert not recovery_threads()


def test_a_fault_of_the_walk_does_not_end_the_files(
    open_files: OpenFiles, stored: list[ObjectKey], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def faulty(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(recovery, "found_file", faulty)
    files = open_files()
    for thread in recovery_threads():
        thread.join(30)
    assert "recovery ended by a fault" in caplog.text
    assert files.usage() is None
    assert files.contains(stored[0])
    assert files.delete(stored[0]) is Outcome.DONE


def recovery_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.endswith("-recovery")]
