"""Nothing that an author's coroutines do ends the event loop, or keeps a buffer and a place for ever."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest

from lmcache_core import AdapterContext, BorrowedBuffer, JobDone, LoadItem, ObjectKey, Outcome, ResourceError, StoreItem
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context, object_key
from lmcache_devkit.l2_driver import WAIT_SECONDS, L2Driver
from lmcache_l2_adapter import AsyncL2Adapter
from lmcache_l2_adapter.loop_executor import LoopThread

DONE, MISSING, FAILED, TIMED_OUT = Outcome.DONE, Outcome.MISSING, Outcome.FAILED, Outcome.TIMED_OUT
A, B, C = map(object_key, range(3))


class Shelf(AsyncL2Adapter):
    """What `contains` does is the test's; the rest goes well."""

    def __init__(self, context: AdapterContext, concurrency: int = 2, timeout_seconds: float = WAIT_SECONDS) -> None:
        self.step: Callable[[], Awaitable[object]] | None = None
        self.loads = 0
        self.was_stopped = threading.Event()
        super().__init__(context, concurrency, timeout_seconds)

    async def store(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        return DONE

    async def load(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        self.loads += 1
        if self.step is not None and key == A:
            await self.step()
        return DONE

    async def contains(self, key: ObjectKey) -> bool:
        return True

    async def stopped(self) -> None:
        self.was_stopped.set()


@pytest.fixture
def adapter(memory: BorrowedMemory) -> Iterator[Shelf]:
    adapter = Shelf(adapter_context(memory, name="shelf"))
    yield adapter
    adapter.close(WAIT_SECONDS)
    assert adapter.was_stopped.wait(WAIT_SECONDS)


@pytest.mark.parametrize("error", [ConnectionError("closed by a cancellation"), TimeoutError("so it seems")])
def test_what_turns_its_cancellation_into_an_error_that_may_pass_is_not_tried_again(
    memory: BorrowedMemory, error: Exception
) -> None:
    async def convert() -> None:
        try:
            await asyncio.sleep(WAIT_SECONDS)
        except asyncio.CancelledError:
            raise error from None

    adapter = Shelf(adapter_context(memory), concurrency=1, timeout_seconds=0.05)
    driver = L2Driver(adapter)
    adapter.step = convert
    job = adapter.submit_load([LoadItem(A, memory.lend(64))])
    assert driver.done(job) == JobDone(job, (TIMED_OUT,), released=True)
    assert driver.store((B, memory.lend(64))) == (DONE,)  # its place is free
    assert adapter.loads == 1
    adapter.close(WAIT_SECONDS)


def test_a_time_out_of_the_authors_own_is_tried_again_all_the_same(adapter: Shelf, memory: BorrowedMemory) -> None:
    async def too_slow_once() -> None:
        if adapter.loads == 1:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(WAIT_SECONDS)

    adapter.step = too_slow_once
    assert L2Driver(adapter).load((A, memory.lend(64))) == (DONE,)
    assert adapter.loads == 2


# What would end a program.


async def leave() -> None:
    raise SystemExit(1)


async def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("part", [leave, interrupt])
def test_a_task_of_the_authors_that_leaves_fails_that_object_alone(
    memory: BorrowedMemory, part: Callable[[], Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    others_may_end = threading.Event()

    async def gather() -> None:
        await asyncio.gather(part(), asyncio.sleep(0.05))

    class Slow(Shelf):
        async def store(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
            while not others_may_end.is_set():
                await asyncio.sleep(0.002)
            return DONE

    slow = Slow(adapter_context(memory, name="slow"))
    driver = L2Driver(slow)
    beside = slow.submit_store([StoreItem(B, memory.lend(64))])
    slow.step = gather
    assert driver.load((A, memory.lend(64)), (C, memory.lend(64))) == (FAILED, DONE)
    others_may_end.set()
    assert driver.finish(beside) == (DONE,)
    assert driver.lookup(A) == (DONE,)
    slow.close(WAIT_SECONDS)
    assert slow.was_stopped.is_set()
    assert "thread=l2-slow" in caplog.text


def test_a_task_that_is_not_awaited_may_end_too(adapter: Shelf, memory: BorrowedMemory) -> None:
    async def start() -> None:
        adapter.left = asyncio.ensure_future(leave())  # type: ignore[attr-defined]
        await asyncio.sleep(0.01)

    adapter.step = start
    driver = L2Driver(adapter)
    assert driver.load((A, memory.lend(64))) == (DONE,)
    assert isinstance(adapter.left.exception(), SystemExit)  # type: ignore[attr-defined]
    assert driver.lookup(A) == (DONE,)


def test_who_cancels_all_there_is_does_not_end_the_adapter(adapter: Shelf, memory: BorrowedMemory) -> None:
    async def cancel_all() -> None:
        for task in asyncio.all_tasks():
            task.cancel()
        await asyncio.sleep(WAIT_SECONDS)

    adapter.step = cancel_all
    driver = L2Driver(adapter)
    assert driver.load((A, memory.lend(64))) == (FAILED,)
    assert driver.load((B, memory.lend(64))) == (DONE,)
    assert not adapter.was_stopped.is_set()


def test_a_loop_that_is_stopped_goes_on(adapter: Shelf, memory: BorrowedMemory) -> None:
    async def stop() -> None:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0.01)

    adapter.step = stop
    driver = L2Driver(adapter)
    assert driver.load((A, memory.lend(64))) == (DONE,)
    assert driver.lookup(A) == (DONE,)


@pytest.mark.parametrize("raised", [SystemExit(1), asyncio.CancelledError(), BaseException("panic")])
def test_stopping_may_raise_anything(
    memory: BorrowedMemory, raised: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    ended = threading.Event()

    class Untidy(Shelf):
        async def started(self) -> None:
            self.heartbeat = asyncio.ensure_future(self.beat())

        async def beat(self) -> None:
            try:
                await asyncio.sleep(WAIT_SECONDS)
            finally:
                ended.set()

        async def stopped(self) -> None:
            raise raised

    Untidy(adapter_context(memory)).close(WAIT_SECONDS)
    assert "stopping an l2 adapter raised" in caplog.text
    assert ended.is_set()


def test_a_start_that_leaves_ends_what_it_began(memory: BorrowedMemory) -> None:
    ended = threading.Event()

    class Broken(Shelf):
        async def started(self) -> None:
            self.heartbeat = asyncio.ensure_future(self.beat())
            await asyncio.sleep(0)
            raise SystemExit(1)

        async def beat(self) -> None:
            try:
                await asyncio.sleep(WAIT_SECONDS)
            finally:
                ended.set()

    with pytest.raises(ResourceError, match="SystemExit"):
        Broken(adapter_context(memory))
    assert ended.wait(WAIT_SECONDS)


def test_where_the_loop_is_gone_jobs_are_answered_and_close_returns(
    memory: BorrowedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = Shelf(adapter_context(memory))
    driver = L2Driver(adapter)
    monkeypatch.setattr(LoopThread, "post", lambda self, function: False)
    assert driver.store((A, memory.lend(64))) == driver.lookup(A) == (FAILED,)
    begin = time.monotonic()
    adapter.close(0.1)
    assert time.monotonic() - begin < WAIT_SECONDS / 2
    monkeypatch.undo()
    adapter._ObjectL2Adapter__executor.close(WAIT_SECONDS)  # type: ignore[attr-defined]
    assert adapter.was_stopped.wait(WAIT_SECONDS)


def test_posting_to_a_loop_that_has_ended_says_so() -> None:
    async def nothing() -> None:
        pass

    loop = LoopThread("short")
    loop.start(nothing, nothing, nothing, WAIT_SECONDS)
    assert loop.join(WAIT_SECONDS)
    assert not loop.post(lambda: None)


def test_close_answers_every_job_even_where_the_executor_raises(
    memory: BorrowedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = threading.Event()

    async def wait() -> None:
        while not hold.is_set():
            await asyncio.sleep(0.002)

    adapter = Shelf(adapter_context(memory))
    driver = L2Driver(adapter)
    adapter.step = wait
    job = adapter.submit_load([LoadItem(A, memory.lend(64))])
    executor = adapter._ObjectL2Adapter__executor  # type: ignore[attr-defined]
    monkeypatch.setattr(executor, "close", lambda deadline_seconds: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        adapter.close(0.1)
    assert driver.done(job) == JobDone(job, (FAILED,), released=False)
    hold.set()
    driver.wait_released(job)
    monkeypatch.undo()
    executor.close(WAIT_SECONDS)
    assert adapter.was_stopped.wait(WAIT_SECONDS)
