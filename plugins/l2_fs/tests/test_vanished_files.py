"""A file that another process deleted: its entry goes, and the entry of the one that is stored anew stays."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from lmcache_core import HEADER_BYTES, Outcome, media_path
from lmcache_devkit.borrowed_memory import BorrowedMemory, object_key
from lmcache_devkit.l2_driver import L2Driver
from lmcache_devkit.l2_suite import OBJECT_BYTES, counted, put
from lmcache_l2_fs.adapter import FsAdapter, ObjectIO

DONE, MISSING, FAILED = Outcome.DONE, Outcome.MISSING, Outcome.FAILED
Open = Callable[..., FsAdapter]


def test_a_load_that_finds_no_file_forgets_it(open_here: Open, root: Path, memory: BorrowedMemory) -> None:
    driver = L2Driver(open_here())
    (key,) = put(driver, memory, 1)
    (root / media_path(key)).unlink()
    assert driver.has(key) == (DONE,)  # as far as is known
    assert driver.load((key, memory.lend(OBJECT_BYTES))) == (MISSING,)
    assert driver.has(key) == (MISSING,)
    assert counted(driver) == (0, 0)


def test_what_was_stored_while_a_load_found_no_file_is_not_forgotten(
    open_here: Open, root: Path, memory: BorrowedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = L2Driver(open_here())
    (key,) = put(driver, memory, 1)
    (root / media_path(key)).unlink()
    found_none, go_on = threading.Event(), threading.Event()
    system_open = ObjectIO.open

    def open_slowly(self: ObjectIO, path: str) -> int:
        try:
            return system_open(self, path)
        except FileNotFoundError:
            found_none.set()
            assert go_on.wait(30)
            raise

    monkeypatch.setattr(ObjectIO, "open", open_slowly)
    load = driver.submit_load([(key, memory.lend(OBJECT_BYTES))])
    assert found_none.wait(30)
    put(driver, memory, 1)
    go_on.set()
    assert driver.finish(load) == (MISSING,)
    assert driver.has(key) == (DONE,)
    assert counted(driver) == (1, OBJECT_BYTES)
    assert driver.load((key, memory.lend(OBJECT_BYTES))) == (DONE,)


def test_the_index_does_not_vouch_for_a_disk_that_is_broken(
    open_here: Open, memory: BorrowedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = open_here()
    driver = L2Driver(adapter)
    (key,) = put(driver, memory, 1)
    asked: list[str] = []

    def broken(self: ObjectIO, path: str) -> int:
        asked.append(path)
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    monkeypatch.setattr(ObjectIO, "open", broken)
    buffer = memory.lend(HEADER_BYTES + 1)
    for _ in range(30):
        assert driver.has(key, object_key(99)) == (DONE, MISSING)
        assert driver.load((key, buffer)) == (FAILED,)
    assert len(asked) == 10  # then the breaker is open
    assert adapter.circuit.openings == 1
