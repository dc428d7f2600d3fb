"""A directory that cannot be written to says so for as long as that lasts, and no longer."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from libs.object_files.tests.conftest import OpenFiles
from libs.object_files.tests.stored import store
from lmcache_core import Outcome, Severity
from lmcache_devkit.borrowed_memory import object_key
from lmcache_object_files import ObjectDirectory, ObjectFiles

SIZE = 8192


def names(files: ObjectFiles) -> list[str]:
    return [each.name for each in files.conditions()]


def test_a_directory_that_takes_stores_has_none(open_files: OpenFiles, root: Path) -> None:
    files = open_files()
    store(files, object_key(1))
    before = sorted(root.rglob("*"))
    assert files.conditions() == []
    assert sorted(root.rglob("*")) == before, "nothing is written without need"


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (errno.ENOSPC, "medium_full"),
        (errno.EDQUOT, "medium_full"),
        (errno.EFBIG, "medium_full"),
        (errno.EROFS, "medium_read_only"),
        (errno.EACCES, "medium_denied"),
        (errno.EPERM, "medium_denied"),
        (errno.EIO, "medium_broken"),
        (errno.ESTALE, "medium_broken"),
    ],
)
def test_a_store_that_failed_is_a_condition_until_a_probe_succeeds(
    open_files: OpenFiles, monkeypatch: pytest.MonkeyPatch, number: int, name: str
) -> None:
    files = open_files()
    fault = OSError(number, os.strerror(number))
    broken = [True]
    original = ObjectDirectory.probe

    def probe(directory: ObjectDirectory, size: int) -> None:
        if broken:
            raise fault
        original(directory, size)

    monkeypatch.setattr(ObjectDirectory, "probe", probe)
    assert names(files) == [], "nothing has failed yet"
    if name == "medium_full":
        assert files.not_written(fault, SIZE) is Outcome.REJECTED
    else:
        with pytest.raises(OSError, match=os.strerror(number)):
            files.not_written(fault, SIZE)
    for _ in range(2):
        (condition,) = files.conditions()
        assert (condition.name, condition.severity) == (name, Severity.WARNING)
        assert condition.reason
        assert condition.remedy
    broken.clear()
    assert names(files) == []


def test_a_directory_without_room_for_the_object_is_full_although_a_probe_would_fit(
    open_files: OpenFiles, root: Path
) -> None:
    files = open_files()
    files.not_written(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), 1 << 60)
    (condition,) = files.conditions()
    assert condition.name == "medium_full"
    assert f"room for {1 << 60} more bytes in '{root}'" in condition.reason
    assert "bytes are free" in condition.reason


def test_one_that_was_moved_away_is_gone_until_it_is_back(open_files: OpenFiles, root: Path) -> None:
    files = open_files()
    root.rename(root.parent / "elsewhere")
    assert names(files) == ["medium_gone"]
    root.mkdir()
    (condition,) = files.conditions()
    assert condition.name == "medium_replaced"
    assert str(root) in condition.reason
    root.rmdir()
    (root.parent / "elsewhere").rename(root)
    assert names(files) == []


def test_a_probe_leaves_nothing(open_files: OpenFiles, root: Path) -> None:
    files = open_files()
    before = sorted(root.rglob("*"))
    files.not_written(OSError(errno.EDQUOT, "quota"), SIZE)
    assert names(files) == []
    assert sorted(root.rglob("*")) == before
