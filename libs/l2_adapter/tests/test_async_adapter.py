"""What AsyncL2Adapter adds to an author's coroutines: turns and time-outs."""

from __future__ import annotations

import asyncio
import threading
import time

from libs.l2_adapter.tests.scripted_adapter import Gate, Scripted, having, items
from lmcache_core import JobDone, LoadItem, Outcome
from lmcache_devkit.borrowed_memory import BorrowedMemory, object_key
from lmcache_devkit.l2_driver import WAIT_SECONDS, L2Driver

DONE, MISSING, REJECTED, FAILED = Outcome.DONE, Outcome.MISSING, Outcome.REJECTED, Outcome.FAILED
TIMED_OUT = Outcome.TIMED_OUT
A, B, C, D = map(object_key, range(4))


# Turns.


def test_changes_to_one_object_never_overlap_and_come_in_their_order(
    adapter: Scripted, driver: L2Driver, memory: BorrowedMemory, gate: Gate
) -> None:
    adapter.script["store", A] = gate
    store = adapter.submit_store(items(memory, 0))
    gate.wait_reached()
    delete = adapter.submit_delete([A])
    time.sleep(0.02)
    assert adapter.calls == [("store", A)]
    gate.opened.set()
    assert driver.finish(store) == driver.finish(delete) == (DONE,)
    assert adapter.calls == [("store", A), ("delete", A)]


def test_submitting_never_waits_for_a_loop_that_is_blocked(
    adapter: Scripted, driver: L2Driver, memory: BorrowedMemory
) -> None:
    entered, blocked = threading.Event(), threading.Event()

    async def block() -> Outcome:
        entered.set()
        blocked.wait(WAIT_SECONDS)
        return DONE

    adapter.script["store", A] = block
    first = adapter.submit_store(items(memory, 0))
    assert entered.wait(WAIT_SECONDS)
    jobs = [adapter.submit_store(items(memory, 1)), adapter.submit_lookup([B]), adapter.submit_delete([C])]
    adapter.reject(D, Outcome.DAMAGED)
    assert driver.answers() == {}
    blocked.set()
    assert [driver.finish(job) for job in (first, *jobs)] == [(DONE,)] * 4


# Time-outs.


@having(timeout_seconds=0.05)
def test_what_takes_too_long_is_cancelled_and_has_released_its_buffer(
    adapter: Scripted, driver: L2Driver, memory: BorrowedMemory, gate: Gate
) -> None:
    adapter.script = {("load", A): gate, ("contains", B): gate, ("delete", C): gate}
    batch = items(memory, 0, 3)
    job = adapter.submit_load([LoadItem(*item) for item in batch])
    assert driver.done(job) == JobDone(job, (TIMED_OUT, DONE), released=True)
    assert gate.cancelled.acquire(timeout=0)
    assert driver.lookup(B) == driver.delete(C) == (TIMED_OUT,)
    assert adapter.circuit.failures_in_a_row == 2, "the load and the lookup; what changes objects is counted apart"


@having(timeout_seconds=0.05)
def test_what_will_not_be_cancelled_keeps_its_buffer_until_it_ends(
    adapter: Scripted, driver: L2Driver, memory: BorrowedMemory, stubborn: Gate
) -> None:
    adapter.script["store", A] = stubborn
    job = adapter.submit_store(items(memory, 0, 1))
    assert driver.done(job) == JobDone(job, (TIMED_OUT, DONE), released=False)
    assert driver.store(*items(memory, 2)) == (DONE,)  # there is room beside it
    assert driver.store(*items(memory, 0)) == (TIMED_OUT,)  # but not for a change of the same object
    assert adapter.completions().drain() == []
    stubborn.opened.set()
    driver.wait_released(job)
    assert driver.answers()[job] == 1
    adapter.script.clear()
    assert driver.store(*items(memory, 0)) == (DONE,)


@having(timeout_seconds=0.05)
def test_what_is_done_while_it_is_cancelled_is_done(
    adapter: Scripted, driver: L2Driver, memory: BorrowedMemory
) -> None:
    async def finish_anyway() -> Outcome:
        try:
            await asyncio.sleep(WAIT_SECONDS)
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
        return DONE

    adapter.script["store", A] = finish_anyway
    job = adapter.submit_store(items(memory, 0))
    assert driver.done(job) == JobDone(job, (DONE,), released=True)


@having(timeout_seconds=0.05)
def test_a_lookup_that_came_too_late_leaves_no_pin(adapter: Scripted, driver: L2Driver) -> None:
    late = Gate(result=True, is_stubborn=True)
    adapter.script["contains", A] = late
    assert driver.lookup(A) == (TIMED_OUT,)
    assert driver.delete(A) == (REJECTED,)  # until it is known what becomes of it
    late.opened.set()
    end = time.monotonic() + WAIT_SECONDS
    while driver.delete(A) != (DONE,):
        assert time.monotonic() < end


@having(timeout_seconds=0.05)
def test_who_waits_for_his_turn_in_vain_passes_it_on(
    adapter: Scripted, driver: L2Driver, memory: BorrowedMemory, stubborn: Gate
) -> None:
    adapter.script["delete", A] = stubborn
    slow = adapter.submit_delete([A])
    stubborn.wait_reached()
    assert driver.delete(A) == (TIMED_OUT,)
    assert driver.finish(slow) == (TIMED_OUT,)
    stubborn.opened.set()
    adapter.script.clear()
    assert driver.store(*items(memory, 0)) == (DONE,)
    assert adapter.calls == [("delete", A), ("store", A)]


def test_an_author_who_cancels_himself_has_failed(adapter: Scripted, driver: L2Driver, memory: BorrowedMemory) -> None:
    async def cancel() -> Outcome:
        raise asyncio.CancelledError

    adapter.script["load", A] = cancel
    job = adapter.submit_load([LoadItem(*item) for item in items(memory, 0)])
    assert driver.done(job) == JobDone(job, (FAILED,), released=True)
    assert driver.load(*items(memory, 1)) == (DONE,)
