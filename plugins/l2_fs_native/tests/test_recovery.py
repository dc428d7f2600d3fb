"""While it is not known yet what the directory holds, the adapter serves it all the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lmcache_core import Outcome, media_path
from lmcache_devkit.borrowed_memory import BorrowedMemory, object_key
from lmcache_devkit.l2_driver import L2Driver
from lmcache_devkit.l2_suite import OBJECT_BYTES, counted, put
from lmcache_l2_fs_native.adapter import FsNativeAdapter
from lmcache_native.io import WRITE_FILE
from lmcache_object_files import Recovery
from plugins.l2_fs_native.tests.gated_engine import gate_engines

DONE, MISSING = Outcome.DONE, Outcome.MISSING
Open = Callable[..., FsNativeAdapter]


@pytest.fixture
def unrecovered(
    open_here: Open, memory: BorrowedMemory, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], FsNativeAdapter]:
    """An adapter whose walk has not come to anything yet, and five objects from before."""

    def opened() -> FsNativeAdapter:
        before = open_here()
        put(L2Driver(before), memory, 5)
        before.close(30)
        monkeypatch.setattr(Recovery, "start", lambda self: None)
        return open_here()

    return opened


def test_what_was_there_before_is_found_loaded_and_deleted(
    unrecovered: Callable[[], FsNativeAdapter], memory: BorrowedMemory
) -> None:
    adapter = unrecovered()
    driver = L2Driver(adapter)
    keys = [object_key(number) for number in range(5)]
    assert adapter.usage() is None
    assert adapter.counters()["recovering"] == 1
    assert driver.has(*keys[:2], object_key(99)) == (DONE, DONE, MISSING)
    assert driver.load(*((key, memory.lend(OBJECT_BYTES)) for key in keys)) == (DONE,) * 5
    assert driver.delete(*keys[3:], object_key(99)) == (DONE, DONE, MISSING)
    assert driver.has(*keys) == (DONE,) * 3 + (MISSING,) * 2


def test_what_is_there_is_not_written_again(
    unrecovered: Callable[[], FsNativeAdapter], memory: BorrowedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = gate_engines(monkeypatch)
    driver = L2Driver(unrecovered())
    put(driver, memory, 6)
    assert sum(batch.count(WRITE_FILE) for batch in made[-1].batches) == 1


def test_in_the_end_the_index_is_what_is_on_the_medium(
    unrecovered: Callable[[], FsNativeAdapter], open_here: Open, memory: BorrowedMemory, root: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    driver = L2Driver(unrecovered())
    put(driver, memory, 2, first=10)
    driver.delete(object_key(0), object_key(10))
    driver.close(30)
    monkeypatch.undo()
    driver = L2Driver(open_here())
    left = [object_key(number) for number in (1, 2, 3, 4, 11)]
    assert counted(driver) == (5, 5 * OBJECT_BYTES)
    assert set(driver.keys(2)) == set(left)
    assert all((root / media_path(key)).exists() for key in left)
