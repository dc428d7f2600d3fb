"""How an adapter of coroutines begins and ends."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time

import pytest

from libs.l2_adapter.tests.scripted_adapter import Gate, Scripted, having, items
from libs.l2_adapter.tests.shelf_adapter import Shelf
from lmcache_core import (
    ConfigError,
    JobDone,
    ObjectKey,
    Outcome,
    ResourceError,
)
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context, object_key
from lmcache_devkit.l2_driver import WAIT_SECONDS, L2Driver

DONE, MISSING, REJECTED, FAILED = Outcome.DONE, Outcome.MISSING, Outcome.REJECTED, Outcome.FAILED
TIMED_OUT = Outcome.TIMED_OUT
A, B, C, D = map(object_key, range(4))


# The end.


@having(concurrency=3)
def test_close_answers_everything_and_stays_within_its_deadline(
    adapter: Scripted,
    driver: L2Driver,
    memory: BorrowedMemory,
    gate: Gate,
    stubborn: Gate,
    caplog: pytest.LogCaptureFixture,
) -> None:
    adapter.script = {("store", A): gate, ("store", B): stubborn, ("store", C): stubborn, ("contains", A): gate}
    lost = adapter.submit_store(items(memory, 0))
    stuck = adapter.submit_store(items(memory, 1, 2))
    for _ in range(2):
        stubborn.wait_reached()
    unstarted = adapter.submit_store(items(memory, 3))
    lookup = adapter.submit_lookup([A])
    gate.wait_reached()
    gate.wait_reached()
    begin = time.monotonic()
    adapter.close(0.2)
    assert time.monotonic() - begin < 2.0
    assert driver.done(lost) == JobDone(lost, (FAILED,), released=True)  # it ended when it was cancelled
    assert driver.done(stuck) == JobDone(stuck, (FAILED, FAILED), released=False)
    assert driver.done(unstarted) == JobDone(unstarted, (FAILED,), released=True)
    assert driver.done(lookup) == JobDone(lookup, (FAILED,), released=True)
    assert "objects=2" in caplog.text
    assert not adapter.was_stopped.is_set()
    adapter.close(0.2)
    assert driver.store(*items(memory, 5)) == driver.lookup(D) == (FAILED,)

    threading.Timer(0.1, stubborn.opened.set).start()
    adapter.close(WAIT_SECONDS)  # once more: it waits for the end
    assert adapter.was_stopped.is_set()
    driver.wait_released(stuck)
    assert set(driver.answers().values()) == {1}
    assert ("store", D) not in adapter.calls


def test_close_without_time_ends_nothing_early_that_was_not_begun(
    adapter: Scripted, driver: L2Driver, memory: BorrowedMemory, gate: Gate
) -> None:
    adapter.script["store", A] = gate
    job = adapter.submit_store(items(memory, 0))
    gate.wait_reached()
    adapter.close(0)
    done = driver.done(job)
    assert done.outcomes == (FAILED,)
    if not done.released:
        driver.wait_released(job)
    assert adapter.was_stopped.wait(WAIT_SECONDS)


def test_the_thread_is_a_daemon_with_the_adapters_name_and_ends_with_it(adapter: Scripted) -> None:
    (mine,) = [thread for thread in threading.enumerate() if thread.name == "l2-scripted"]
    assert mine.daemon
    adapter.close(WAIT_SECONDS)
    assert not mine.is_alive()


def test_what_the_author_left_running_ends_with_the_adapter(memory: BorrowedMemory) -> None:
    class WithHeartbeat(Scripted):
        async def started(self) -> None:
            self.heartbeat = asyncio.create_task(asyncio.sleep(WAIT_SECONDS))

    adapter = WithHeartbeat(adapter_context(memory))
    adapter.close(WAIT_SECONDS)
    assert adapter.was_stopped.is_set()
    assert adapter.heartbeat.cancelled()


def test_what_stopping_raises_is_logged(memory: BorrowedMemory, caplog: pytest.LogCaptureFixture) -> None:
    class Untidy(Scripted):
        async def stopped(self) -> None:
            raise OSError("cannot close")

    Untidy(adapter_context(memory)).close(WAIT_SECONDS)
    assert "cannot close" in caplog.text


def test_a_stop_that_hangs_is_cut_off(
    memory: BorrowedMemory, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hanging(Scripted):
        async def stopped(self) -> None:
            await asyncio.sleep(WAIT_SECONDS)

    monkeypatch.setattr("lmcache_l2_adapter.loop_executor.STOP_SECONDS", 0.3)
    before = threading.active_count()
    Hanging(adapter_context(memory)).close(0.1)
    assert threading.active_count() == before
    assert "TimeoutError" in caplog.text


# The start.


def test_hooks_run_on_the_loop_that_runs_the_verbs(memory: BorrowedMemory) -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    class Curious(Shelf):
        async def started(self) -> None:
            await super().started()
            loops.append(asyncio.get_running_loop())

        async def contains(self, key: ObjectKey) -> bool:
            loops.append(asyncio.get_running_loop())
            return False

        async def stopped(self) -> None:
            loops.append(asyncio.get_running_loop())

    adapter = Curious(adapter_context(memory))
    L2Driver(adapter).lookup(A)
    adapter.close(WAIT_SECONDS)
    assert len(loops) == 3
    assert len(set(loops)) == 1


@pytest.mark.parametrize(
    ("raised", "expected", "message"),
    [
        (
            OSError("no route to host"),
            ResourceError,
            r"^shelf: the adapter could not be started .*no route to host.*check",
        ),
        (SystemExit(1), ResourceError, "could not be started .*SystemExit"),
        (asyncio.CancelledError(), ResourceError, "could not be started .*CancelledError"),
        (ConfigError("shelf: field 'address' is wrong"), ConfigError, "^shelf: field 'address' is wrong$"),
    ],
)
def test_what_starting_raises_stops_the_opening_and_leaves_nothing(
    memory: BorrowedMemory, raised: BaseException, expected: type[Exception], message: str
) -> None:
    class Broken(Shelf):
        async def started(self) -> None:
            raise raised

    gc.collect()  # what earlier tests left
    before = (descriptors(), threading.active_count())
    for _ in range(20):
        with pytest.raises(expected, match=message) as refused:
            Broken(adapter_context(memory, name="shelf"))
        assert "\n" not in str(refused.value)
        del refused
        raised.with_traceback(None)
    assert (descriptors(), threading.active_count()) == before


def test_a_start_that_takes_too_long_is_cut_off(memory: BorrowedMemory) -> None:
    class Slow(Shelf):
        async def started(self) -> None:
            await asyncio.sleep(WAIT_SECONDS)

    before = threading.active_count()
    with pytest.raises(ResourceError, match=r"could not be started within 0.05 s"):
        Slow(adapter_context(memory), operation_timeout_seconds=0.05)
    assert threading.active_count() == before


def test_a_start_that_cannot_be_cut_off_gives_back_what_it_opens_when_it_ends(
    memory: BorrowedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Scripted] = []

    class Stubborn(Scripted):
        async def started(self) -> None:
            opened.append(self)
            end = time.monotonic() + 0.4
            while time.monotonic() < end:
                try:
                    await asyncio.sleep(0.01)
                except asyncio.CancelledError:
                    pass

    monkeypatch.setattr("lmcache_l2_adapter.loop_executor.STOP_SECONDS", 0.05)
    before = threading.active_count()
    with pytest.raises(ResourceError, match=r"could not be started within 0.05 s"):
        Stubborn(adapter_context(memory), timeout_seconds=0.05)
    assert opened[0].was_stopped.wait(WAIT_SECONDS)
    end = time.monotonic() + WAIT_SECONDS
    while threading.active_count() > before:
        assert time.monotonic() < end


@pytest.mark.parametrize("wrong", [{"concurrency": 0}, {"operation_timeout_seconds": 0.0}])
def test_settings_that_make_no_sense_are_refused(memory: BorrowedMemory, wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="concurrency >= 1"):
        Shelf(adapter_context(memory), **wrong)  # type: ignore[arg-type]


def test_a_thousand_opens_and_closes_leave_no_thread_and_no_descriptor(memory: BorrowedMemory) -> None:
    (item,) = items(memory, 0)
    for rounds in (5, 1_000):
        gc.collect()  # what earlier tests left
        before = (descriptors(), threading.active_count())
        for _ in range(rounds):
            adapter = Shelf(adapter_context(memory))
            assert L2Driver(adapter).store(item) == (DONE,)
            adapter.close(WAIT_SECONDS)
            del adapter
        after = (descriptors(), threading.active_count())
    assert after == before


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
