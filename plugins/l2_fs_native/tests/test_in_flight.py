"""The whole of a prefetch is with the engine before the first of its objects is heard of."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from lmcache_core import Outcome
from lmcache_devkit.borrowed_memory import BorrowedMemory
from lmcache_devkit.l2_driver import WAIT_SECONDS, L2Driver
from lmcache_devkit.l2_suite import OBJECT_BYTES, put
from lmcache_l2_fs_native.adapter import FsNativeAdapter
from lmcache_native.io import READ_FILE, WRITE_FILE
from plugins.l2_fs_native.tests.gated_engine import GatedEngine, gate_engines

DONE = Outcome.DONE
Open = Callable[..., FsNativeAdapter]
DEPTH = 16


def submitted(engine: GatedEngine, kind: int) -> list[int]:
    """How many operations of this kind each batch had."""
    counts = [batch.count(kind) for batch in engine.batches]
    return [count for count in counts if count]


def wait_submitted(engine: GatedEngine, kind: int, count: int) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while sum(submitted(engine, kind)) < count:
        assert time.monotonic() < end, f"{submitted(engine, kind)} operations were submitted, not {count}"
        time.sleep(0.001)


def test_as_many_reads_as_the_queue_is_deep_are_under_way_before_any_is_answered(
    open_here: Open, memory: BorrowedMemory, monkeypatch: pytest.MonkeyPatch, io_engine: str
) -> None:
    made = gate_engines(monkeypatch)
    driver = L2Driver(open_here(io_engine=io_engine, queue_depth=DEPTH))
    keys = put(driver, memory, DEPTH)
    (engine,) = made
    engine.gate.clear()
    job = driver.submit_load([(key, memory.lend(OBJECT_BYTES)) for key in keys])
    wait_submitted(engine, READ_FILE, DEPTH)
    assert submitted(engine, READ_FILE) == [DEPTH], "one batch, and so one call of the engine"
    assert driver.is_quiet()
    engine.gate.set()
    assert driver.finish(job) == (DONE,) * DEPTH


def test_no_more_than_the_queue_is_deep_are_given_to_the_engine(
    open_here: Open, memory: BorrowedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = gate_engines(monkeypatch)
    driver = L2Driver(open_here(queue_depth=4))
    keys = put(driver, memory, 10)
    (engine,) = made
    engine.gate.clear()
    job = driver.submit_load([(key, memory.lend(OBJECT_BYTES)) for key in keys])
    wait_submitted(engine, READ_FILE, 4)
    time.sleep(0.05)
    assert sum(submitted(engine, READ_FILE)) == 4
    engine.gate.set()
    assert driver.finish(job) == (DONE,) * 10


def test_a_batch_of_stores_is_one_batch_for_the_engine(
    open_here: Open, memory: BorrowedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once directories are there and recovery has ended."""
    made = gate_engines(monkeypatch)
    adapter = open_here(queue_depth=DEPTH)
    driver = L2Driver(adapter)
    end = time.monotonic() + WAIT_SECONDS
    while adapter.counters()["recovering"]:
        assert time.monotonic() < end
        time.sleep(0.002)
    put(driver, memory, DEPTH)
    driver.delete(*driver.stored.values())
    made[0].batches.clear()
    put(driver, memory, DEPTH)
    assert submitted(made[0], WRITE_FILE) == [DEPTH]


def test_a_lookup_asks_nothing_of_the_medium_once_everything_is_known(
    open_here: Open, memory: BorrowedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = L2Driver(open_here())
    keys = put(driver, memory, 3)
    end = time.monotonic() + WAIT_SECONDS
    while driver.adapter.usage() is None:
        assert time.monotonic() < end
        time.sleep(0.002)

    async def asked(*_: object) -> None:
        raise AssertionError("a lookup left the loop")

    monkeypatch.setattr(FsNativeAdapter, "in_thread", asked)
    assert driver.has(*keys) == (DONE,) * 3
