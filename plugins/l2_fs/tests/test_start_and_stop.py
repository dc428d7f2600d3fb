"""The adapter serves before it knows its directory, and keeps or removes what it is configured to."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lmcache_core import Outcome, check, media_path
from lmcache_devkit.borrowed_memory import BorrowedMemory, object_key
from lmcache_devkit.l2_driver import L2Driver
from lmcache_devkit.l2_suite import OBJECT_BYTES, counted, put
from lmcache_l2_fs.adapter import FsAdapter
from lmcache_object_files import recovery

DONE, MISSING, FAILED = Outcome.DONE, Outcome.MISSING, Outcome.FAILED
Open = Callable[..., FsAdapter]


@pytest.fixture
def go_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Until it is set, no recovery takes its first step."""
    event = threading.Event()
    steps = recovery.Recovery.steps

    def held(self: recovery.Recovery) -> Iterator[float]:
        assert event.wait(60)
        yield from steps(self)

    monkeypatch.setattr(recovery.Recovery, "steps", held)
    yield event
    event.set()


def test_it_serves_and_changes_before_it_knows_anything(
    open_here: Open, memory: BorrowedMemory, go_on: threading.Event
) -> None:
    go_on.set()
    driver = L2Driver(open_here())
    keys = put(driver, memory, 6)
    driver.adapter.close(30)

    go_on.clear()
    adapter = open_here(known=False)
    driver = L2Driver(adapter)
    assert adapter.usage() is None
    assert adapter.counters()["recovering"] == 1
    assert driver.has(*keys, object_key(99)) == (DONE,) * 6 + (MISSING,)
    buffer = memory.lend(OBJECT_BYTES)
    assert driver.load((keys[0], buffer)) == (DONE,)
    assert check(buffer.view, keys[0]).outcome is DONE
    assert driver.delete(keys[1]) == (DONE,)
    assert driver.has(keys[1]) == (MISSING,)
    put(driver, memory, 2, first=20)
    assert set(driver.keys(3)) == {*keys, object_key(20), object_key(21)} - {keys[1]}
    go_on.set()
    assert counted(driver) == (7, 7 * OBJECT_BYTES)


def test_it_closes_before_it_knows_anything(open_here: Open, root: Path, memory: BorrowedMemory) -> None:
    adapter = open_here(known=False)
    adapter.close(30)
    open_here()


def test_a_base_path_that_vanishes_fails_operations_and_costs_no_object(
    open_here: Open, root: Path, memory: BorrowedMemory
) -> None:
    driver = L2Driver(open_here())
    (key,) = put(driver, memory, 1)
    away = root.with_name("away")
    root.rename(away)
    root.mkdir()  # what a mount leaves
    assert driver.load((key, memory.lend(OBJECT_BYTES))) == (FAILED,)
    assert driver.store((object_key(1), memory.sealed(object_key(1), b"x"))) == (FAILED,)
    assert driver.delete(key) == (FAILED,)
    assert list(root.iterdir()) == [], "nothing may be written to the wrong disk"
    root.rmdir()
    away.rename(root)
    assert driver.load((key, memory.lend(OBJECT_BYTES))) == (DONE,)
    assert counted(driver) == (1, OBJECT_BYTES)


def test_without_persistence_nothing_of_ours_outlives_the_adapter(
    open_here: Open, root: Path, memory: BorrowedMemory
) -> None:
    (root / "notes").mkdir(parents=True)
    (root / "notes" / "letter.txt").write_text("mine")
    driver = L2Driver(open_here())
    keys = put(driver, memory, 3)
    driver.adapter.close(30)
    assert all((root / media_path(key)).exists() for key in keys)
    driver = L2Driver(open_here(persist_enabled=False))
    put(driver, memory, 3, first=3)
    driver.adapter.close(30)
    assert sorted(path.name for path in root.rglob("*")) == [".lock", ".tmp", "letter.txt", "notes"]


def test_a_base_path_that_is_a_link_is_where_it_leads(open_here: Open, root: Path, memory: BorrowedMemory) -> None:
    root.mkdir()
    link = root.with_name("link")
    link.symlink_to(root)
    driver = L2Driver(open_here(base_path=str(link)))
    keys = put(driver, memory, 2)
    driver.adapter.close(30)
    assert counted(L2Driver(open_here())) == (2, 2 * OBJECT_BYTES)
    assert (root / media_path(keys[0])).exists()


def test_a_directory_that_was_moved_is_served_from_its_new_place(
    open_here: Open, root: Path, memory: BorrowedMemory
) -> None:
    driver = L2Driver(open_here())
    keys = put(driver, memory, 3)
    driver.adapter.close(30)
    shutil.copytree(root, root.with_name("elsewhere"))
    driver = L2Driver(open_here(base_path=str(root.with_name("elsewhere"))))
    assert driver.has(*keys) == (DONE,) * 3
