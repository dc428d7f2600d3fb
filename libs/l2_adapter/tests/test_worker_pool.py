"""Threads that outlive what they run, and an end that does not outlast its deadline."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from lmcache_core import AdapterContext, BorrowedBuffer, ObjectKey, Outcome, StoreItem
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context, object_key
from lmcache_devkit.l2_driver import WAIT_SECONDS, L2Driver
from lmcache_l2_adapter import BlockingL2Adapter
from lmcache_l2_adapter.executor import WorkerPool

DONE, FAILED = Outcome.DONE, Outcome.FAILED
A, B = map(object_key, range(2))


class Panic(BaseException):
    """As a client library in another language raises it: no Exception."""


class Shelf(BlockingL2Adapter):
    def __init__(self, context: AdapterContext, workers: int = 2) -> None:
        self.on_store: Callable[[], object] = lambda: None
        self.on_contains: Callable[[], object] = lambda: None
        self.on_stopped: Callable[[], object] = lambda: None
        self.stored = 0
        self.was_stopped = threading.Event()
        super().__init__(context, workers)

    def store(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        self.on_store()
        self.stored += 1
        return DONE

    def load(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        self.on_store()
        return DONE

    def contains(self, key: ObjectKey) -> bool:
        self.on_contains()
        return True

    def stopped(self) -> None:
        self.was_stopped.set()
        self.on_stopped()


@pytest.fixture
def go_on() -> Iterator[threading.Event]:
    go_on = threading.Event()
    yield go_on
    go_on.set()


def raising(error: BaseException) -> Callable[[], object]:
    def fail() -> object:
        raise error

    return fail


@pytest.mark.parametrize(
    "error", [Panic("at the disco"), asyncio.CancelledError(), KeyboardInterrupt(), SystemExit(1), GeneratorExit()]
)
def test_what_is_not_an_exception_fails_its_object_and_the_threads_live_on(
    memory: BorrowedMemory, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    adapter = Shelf(adapter_context(memory))
    driver = L2Driver(adapter)
    adapter.on_store = adapter.on_contains = raising(error)
    assert driver.lookup(A, B) == (FAILED, FAILED)
    items = [(object_key(number), memory.lend(64)) for number in range(3)]
    assert driver.store(*items) == driver.load(*items) == (FAILED,) * 3
    assert type(error).__name__ in caplog.text
    assert "an l2 operation raised" in caplog.text
    assert "an l2 operation was lost" not in caplog.text
    adapter.on_store = adapter.on_contains = lambda: None
    assert driver.lookup(A) == (DONE,)
    assert driver.store(*items) == (DONE,) * 3
    adapter.on_stopped = raising(error)
    adapter.close(WAIT_SECONDS)
    assert adapter.was_stopped.is_set()
    assert "stopping an l2 adapter raised" in caplog.text


def test_a_pool_survives_what_its_task_raises() -> None:
    ran: list[int] = []
    stopped = threading.Event()

    def run(number: int) -> None:
        ran.append(number)
        raise Panic

    pool = WorkerPool[int]("pool", 1, run, stopped.set)
    assert pool.submit([1, 2, 3])
    pool.begin_close()
    assert not pool.submit([4])
    end = time.monotonic() + WAIT_SECONDS
    assert pool.end_close(end) == []
    assert pool.join(end)
    assert ran == [1, 2, 3]
    assert stopped.is_set()


def test_a_stop_that_hangs_does_not_keep_close(
    memory: BorrowedMemory, go_on: threading.Event, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmcache_l2_adapter.executor.STOP_SECONDS", 0.1)
    adapter = Shelf(adapter_context(memory, name="shelf"))
    adapter.on_stopped = lambda: go_on.wait(WAIT_SECONDS)
    closing = threading.Thread(target=adapter.close, args=(0.1,))
    closing.start()
    closing.join(WAIT_SECONDS / 2)
    assert not closing.is_alive()
    assert adapter.was_stopped.is_set()
    assert "did not end" in caplog.text
    assert "l2-shelf" in caplog.text
    adapter.close(0.05)  # and nor does the second
    go_on.set()
    adapter.close(WAIT_SECONDS)


def test_a_stuck_lookup_leaves_the_stores_their_time(memory: BorrowedMemory, go_on: threading.Event) -> None:
    adapter = Shelf(adapter_context(memory), workers=1)
    driver = L2Driver(adapter)
    entered = threading.Event()

    def hang() -> None:
        entered.set()
        go_on.wait(WAIT_SECONDS)

    adapter.on_contains = hang
    adapter.on_store = lambda: time.sleep(0.02)
    lookup = adapter.submit_lookup([A])
    assert entered.wait(WAIT_SECONDS)
    stores = adapter.submit_store([StoreItem(object_key(number), memory.lend(64)) for number in range(10)])
    closing = threading.Thread(target=adapter.close, args=(1.0,))
    closing.start()
    while driver.store((B, memory.lend(64))) != (FAILED,):  # both pools take nothing more from the start of it
        assert closing.is_alive()
    assert closing.is_alive()
    assert driver.finish(stores) == (DONE,) * 10
    closing.join()
    assert driver.finish(lookup) == (FAILED,)
    go_on.set()
    assert adapter.was_stopped.wait(WAIT_SECONDS)


def test_both_pools_end_by_one_time(memory: BorrowedMemory, go_on: threading.Event) -> None:
    adapter = Shelf(adapter_context(memory), workers=1)
    reached = threading.Semaphore(0)

    def hang() -> None:
        reached.release()
        go_on.wait(WAIT_SECONDS)

    adapter.on_contains = adapter.on_store = hang
    adapter.submit_lookup([A])
    adapter.submit_store([StoreItem(A, memory.lend(64))])
    assert reached.acquire(timeout=WAIT_SECONDS)
    assert reached.acquire(timeout=WAIT_SECONDS)
    begin = time.monotonic()
    adapter.close(0.4)
    assert 0.4 <= time.monotonic() - begin < 0.75
    go_on.set()
    assert adapter.was_stopped.wait(WAIT_SECONDS)
