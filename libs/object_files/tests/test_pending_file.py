"""A file comes to its name whole, once, and what does not leaves nothing behind."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from libs.object_files.tests.conftest import OpenFiles
from libs.object_files.tests.stored import sealed, store, wait_known
from lmcache_core import AdapterContext, Outcome, media_path
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context, object_key
from lmcache_object_files import DirectoryLock, ObjectDirectory, PendingFile, object_directory

KEY = object_key(0)
SIZE = len(sealed(KEY, 100))


def admitted(open_files: OpenFiles, **settings: object) -> PendingFile:
    files = open_files(max_capacity_gb=SIZE / 2**30, **settings)
    wait_known(files)
    pending = files.admit(KEY, SIZE)
    assert not isinstance(pending, Outcome)
    assert files.admit(object_key(1), SIZE) is Outcome.REJECTED, "the room is reserved"
    return pending


def test_what_is_not_published_leaves_no_file_and_takes_no_room(open_files: OpenFiles, root: Path) -> None:
    pending = admitted(open_files)
    with pending:
        Path(pending.path).write_bytes(b"half")
    assert not Path(pending.path).exists()
    assert not (root / media_path(KEY)).exists()


def test_room_that_was_given_back_is_there_once(open_files: OpenFiles) -> None:
    files = open_files(max_capacity_gb=SIZE / 2**30)
    wait_known(files)
    for _ in range(3):
        pending = files.admit(KEY, SIZE)
        assert not isinstance(pending, Outcome)
        pending.close()
        pending.close()
    assert store(files, KEY) is Outcome.DONE
    assert files.usage() == (SIZE, SIZE, 1)


def test_a_damaged_file_that_appears_meanwhile_is_moved_aside_and_nothing_is_written_twice(
    open_files: OpenFiles, root: Path
) -> None:
    with admitted(open_files) as pending:
        Path(pending.path).write_bytes(sealed(KEY, 100))
        place = root / media_path(KEY)
        place.parent.mkdir(parents=True)
        place.write_bytes(sealed(KEY, 100)[:-1])
        assert pending.publish() is Outcome.DONE
    assert place.read_bytes() == sealed(KEY, 100)
    assert len(list((root / ".damaged").iterdir())) == 1


def test_a_whole_file_that_appears_meanwhile_is_the_object(open_files: OpenFiles, root: Path) -> None:
    with admitted(open_files) as pending:
        Path(pending.path).write_bytes(sealed(KEY, 100))
        place = root / media_path(KEY)
        place.parent.mkdir(parents=True)
        place.write_bytes(sealed(KEY, 100))
        assert pending.publish() is Outcome.DONE
    assert not Path(pending.path).exists()


def test_a_name_that_could_not_be_made_durable_is_taken_back(
    open_files: OpenFiles, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with admitted(open_files, fsync=True) as pending:
        Path(pending.path).write_bytes(sealed(KEY, 100))
        place = root / media_path(KEY)
        sync = object_directory._sync_directory

        def failing(path: str) -> None:
            if path == str(place.parent):
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            sync(path)

        monkeypatch.setattr(object_directory, "_sync_directory", failing)
        with pytest.raises(OSError, match="Input/output"):
            pending.publish()
        assert not place.exists(), "the answer denies it"


def test_of_many_who_publish_one_name_exactly_one_does(root: Path, context: AdapterContext) -> None:
    root.mkdir()
    directory = ObjectDirectory(DirectoryLock.take(root, context), ".tmp", context)
    runs = [bytes([number]) * 9_000 for number in range(8)]
    barrier = threading.Barrier(8)
    published: list[int] = []

    def publish(number: int) -> None:
        temporary = directory.temporary(KEY.object_id)
        Path(temporary).write_bytes(runs[number])
        barrier.wait(30)
        try:
            directory.publish(temporary, KEY, durable=False)
        except FileExistsError:
            return
        published.append(number)

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = published
    assert Path(directory.path(KEY)).read_bytes() == runs[winner]
    directory.close()
    assert not directory.temporaries.exists()


def test_a_server_that_opens_twice_in_one_boot_begins_with_no_temporaries(root: Path) -> None:
    root.mkdir()
    context = adapter_context(BorrowedMemory(4096), boot_id="boot")
    lock = DirectoryLock.take(root, context)
    first = ObjectDirectory(lock, ".tmp", context).temporary(KEY.object_id)
    Path(first).write_bytes(b"half")
    again = ObjectDirectory(lock, ".tmp", context).temporary(KEY.object_id)
    assert again == first
    assert not Path(again).exists()
