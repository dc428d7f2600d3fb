"""A blocking function on a thread: whatever happens to the operation, its buffer is borrowed until the thread has ended."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Protocol

import pytest

from lmcache_core import AdapterContext, BorrowedBuffer, JobDone, ObjectKey, Outcome, ResourceError, StoreItem
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context, object_key
from lmcache_devkit.l2_driver import WAIT_SECONDS, L2Driver
from lmcache_l2_adapter import AsyncL2Adapter

DONE, FAILED, TIMED_OUT = Outcome.DONE, Outcome.FAILED, Outcome.TIMED_OUT
A, B = map(object_key, range(2))


class Write(Protocol):
    def __call__(self, buffer: BorrowedBuffer) -> Outcome: ...


trace = contextvars.ContextVar("trace", default="none")


class Writer(AsyncL2Adapter):
    """Stores by calling `write` on a thread."""

    def __init__(self, context: AdapterContext, write: Write, timeout_seconds: float) -> None:
        self.write = write
        self.was_stopped = threading.Event()
        self.calls = 0
        super().__init__(context, 2, timeout_seconds)

    async def store(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        self.calls += 1
        trace.set("here")
        return await self.in_thread(self.write, buffer=buffer)

    async def load(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        return DONE

    async def contains(self, key: ObjectKey) -> bool:
        return True

    async def stopped(self) -> None:
        self.was_stopped.set()


class SlowWrite:
    """Touches the buffer for the last time when the test lets it."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.go_on = threading.Event()
        self.ended = threading.Event()

    def __call__(self, buffer: BorrowedBuffer) -> Outcome:
        self.started.set()
        assert self.go_on.wait(WAIT_SECONDS)
        buffer.view[-1] = 77
        self.ended.set()
        return DONE


@pytest.fixture
def slow() -> Iterator[SlowWrite]:
    slow = SlowWrite()
    yield slow
    slow.go_on.set()


def test_its_result_and_its_context_pass(memory: BorrowedMemory) -> None:
    seen: list[tuple[str, bool, str]] = []

    def write(buffer: BorrowedBuffer) -> Outcome:
        me = threading.current_thread()
        seen.append((me.name, me.daemon, trace.get()))
        return Outcome.REJECTED

    adapter = Writer(adapter_context(memory, name="writer"), write, WAIT_SECONDS)
    assert L2Driver(adapter).store((A, memory.lend(64))) == (Outcome.REJECTED,)
    assert seen == [("l2-writer-call", True, "here")]
    adapter.close(WAIT_SECONDS)
    assert trace.get() == "none"


def threads_of(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == f"l2-{name}-call"]


def test_a_thread_is_used_again_and_ends_with_the_adapter(memory: BorrowedMemory) -> None:
    seen: list[threading.Thread] = []

    def write(buffer: BorrowedBuffer) -> Outcome:
        seen.append(threading.current_thread())
        return DONE

    adapter = Writer(adapter_context(memory, name="thrifty"), write, WAIT_SECONDS)
    driver = L2Driver(adapter)
    for _ in range(20):
        assert driver.store((A, memory.lend(64))) == (DONE,)
    assert len(set(seen)) == 1
    assert threads_of("thrifty") == [seen[0]]
    adapter.close(WAIT_SECONDS)
    seen[0].join(WAIT_SECONDS)
    assert threads_of("thrifty") == []


def test_a_start_that_fails_leaves_no_thread(memory: BorrowedMemory) -> None:
    class Broken(Writer):
        async def started(self) -> None:
            await self.in_thread(time.sleep, 0)
            raise OSError("no route to host")

    with pytest.raises(ResourceError, match="no route to host"):
        Broken(adapter_context(memory, name="broken"), SlowWrite(), WAIT_SECONDS)
    for thread in threads_of("broken"):
        thread.join(WAIT_SECONDS)
    assert threads_of("broken") == []


@pytest.mark.parametrize("error", [OSError(5, "EIO"), SystemExit(1), KeyboardInterrupt(), StopIteration()])
def test_what_it_raises_fails_that_object_alone(memory: BorrowedMemory, error: BaseException) -> None:
    def write(buffer: BorrowedBuffer) -> Outcome:
        if buffer.length == 64:
            raise error
        return DONE

    adapter = Writer(adapter_context(memory), write, WAIT_SECONDS)
    assert L2Driver(adapter).store((A, memory.lend(64)), (B, memory.lend(65))) == (FAILED, DONE)
    adapter.close(WAIT_SECONDS)
    assert adapter.was_stopped.is_set()


def test_after_a_time_out_the_buffer_is_borrowed_until_the_thread_has_ended(
    memory: BorrowedMemory, slow: SlowWrite
) -> None:
    adapter = Writer(adapter_context(memory), slow, timeout_seconds=0.05)
    driver = L2Driver(adapter)
    buffer = memory.lend(64)
    job = adapter.submit_store([StoreItem(A, buffer)])
    assert driver.done(job) == JobDone(job, (TIMED_OUT,), released=False)
    time.sleep(0.05)
    assert driver.is_quiet()
    assert not driver.released(job)
    slow.go_on.set()
    driver.wait_released(job)
    assert slow.ended.is_set()
    assert buffer.view[-1] == 77
    assert adapter.calls == 1
    adapter.close(WAIT_SECONDS)


def test_a_thread_that_ends_in_time_after_the_time_out_gives_the_buffer_back_with_the_answer(
    memory: BorrowedMemory,
) -> None:
    def write(buffer: BorrowedBuffer) -> Outcome:
        time.sleep(0.15)
        raise ConnectionError("not tried again: its time is over")

    adapter = Writer(adapter_context(memory), write, timeout_seconds=0.05)
    driver = L2Driver(adapter)
    job = adapter.submit_store([StoreItem(A, memory.lend(64))])
    assert driver.done(job) == JobDone(job, (TIMED_OUT,), released=True)
    assert adapter.calls == 1
    adapter.close(WAIT_SECONDS)


def test_close_does_not_wait_for_a_thread_that_is_stuck_nor_stop_before_it_has_ended(
    memory: BorrowedMemory, slow: SlowWrite
) -> None:
    adapter = Writer(adapter_context(memory), slow, WAIT_SECONDS)
    driver = L2Driver(adapter)
    job = adapter.submit_store([StoreItem(A, memory.lend(64))])
    assert slow.started.wait(WAIT_SECONDS)
    begin = time.monotonic()
    adapter.close(0.1)
    assert time.monotonic() - begin < WAIT_SECONDS / 2
    assert driver.done(job) == JobDone(job, (FAILED,), released=False)
    assert not adapter.was_stopped.is_set()
    slow.go_on.set()
    driver.wait_released(job)
    assert adapter.was_stopped.wait(WAIT_SECONDS)


def test_being_cancelled_twice_changes_nothing(memory: BorrowedMemory, slow: SlowWrite) -> None:
    adapter = Writer(adapter_context(memory), slow, WAIT_SECONDS)
    ended: list[bool] = []

    async def cancel_twice() -> None:
        call = asyncio.ensure_future(adapter.in_thread(slow, memory.lend(64)))
        for _ in range(2):
            await asyncio.sleep(0.01)
            call.cancel()
        await asyncio.sleep(0.01)
        ended.append(call.done())
        slow.go_on.set()
        await asyncio.wait([call])
        ended.append(call.cancelled() and slow.ended.is_set())

    asyncio.run(cancel_twice())
    assert ended == [False, True]
    adapter.close(WAIT_SECONDS)


@pytest.mark.parametrize("error", [None, OSError(5, "EIO")])
def test_nothing_keeps_the_buffer_of_a_call_that_has_ended(memory: BorrowedMemory, error: Exception | None) -> None:
    def write(buffer: BorrowedBuffer) -> Outcome:
        if error is not None:
            raise error
        return DONE

    adapter = Writer(adapter_context(memory), write, WAIT_SECONDS)
    borrowed: list[weakref.ref[Held]] = []

    async def call() -> None:
        held = Held()
        borrowed.append(weakref.ref(held))
        try:
            await adapter.in_thread(write_held, held, write, memory.lend(64))
        except OSError as raised:
            raised.__traceback__ = None

    gc.disable()
    try:
        asyncio.run(call())
        end = time.monotonic() + WAIT_SECONDS
        while borrowed[0]() is not None:  # the thread answers first, and releases it then
            assert time.monotonic() < end
            time.sleep(0.001)
    finally:
        gc.enable()
    adapter.close(WAIT_SECONDS)


class Held:
    """A buffer that can be weakly referenced."""


def write_held(held: Held, write: Write, buffer: BorrowedBuffer) -> Outcome:
    return write(buffer)
