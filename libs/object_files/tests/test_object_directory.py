"""What a directory remembers, and that it is given back once."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from libs.object_files.tests.conftest import OpenFiles
from lmcache_core import AdapterContext
from lmcache_devkit.borrowed_memory import object_key
from lmcache_object_files import DirectoryLock, ObjectDirectory, object_directory


@pytest.mark.parametrize("durable", [False, True])
def test_a_bounded_number_of_places_is_remembered(
    root: Path, context: AdapterContext, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    root.mkdir()
    directory = ObjectDirectory(DirectoryLock.take(root, context), ".tmp", context)
    monkeypatch.setattr(object_directory, "PLACES_MAX", 4)
    paths = list({directory.path(object_key(number)).rsplit("/", 1)[0]: 0 for number in range(64)})
    assert len(paths) > 8
    for path in paths:
        directory.make_place(f"{path}/x.kv", durable=durable)
        assert directory.has_place(f"{path}/x.kv", durable=durable)
        assert sum(directory.has_place(f"{each}/x.kv", durable=durable) for each in paths) <= 4


def test_a_lock_that_was_released_leaves_the_descriptors_of_others_alone(
    root: Path, context: AdapterContext, tmp_path: Path
) -> None:
    root.mkdir()
    lock = DirectoryLock.take(root, context)
    number = lock._fd
    lock.release()
    other = tmp_path / "other"
    other.write_bytes(b"foreign")
    fd = os.open(other, os.O_RDWR)
    os.dup2(fd, number)  # the number is in use again, as it soon is in a server
    try:
        lock.release()
        assert other.read_bytes() == b"foreign"
        os.fstat(number)
    finally:
        for each in {fd, number}:
            os.close(each)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_of_a_full_disk_it_is_said_that_it_is_full(
    open_files: OpenFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    def full(fd: int, data: bytes, at: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pwrite", full)
    open_files().give_up()
    assert "l2 disk is full" in caplog.text
    monkeypatch.undo()
    open_files()  # what was taken before was given back
