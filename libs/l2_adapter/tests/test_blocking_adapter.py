"""What BlockingL2Adapter adds to an author's four methods; `test_first_adapter.py` shows that it keeps the requirements."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from libs.l2_adapter.tests.blocking_scripted_adapter import BlockingGate, BlockingScripted
from libs.l2_adapter.tests.scripted_adapter import closed_behind, items
from lmcache_core import JobDone, Outcome, SystemClock
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context, object_key
from lmcache_devkit.l2_driver import WAIT_SECONDS, L2Driver

DONE, MISSING, REJECTED, FAILED = Outcome.DONE, Outcome.MISSING, Outcome.REJECTED, Outcome.FAILED


class HandClock(SystemClock):
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def adapter(memory: BorrowedMemory, clock: HandClock) -> Iterator[BlockingScripted]:
    context = adapter_context(memory, name="scripted", clock=clock)
    with closed_behind(BlockingScripted(context)) as adapter:
        yield adapter


@pytest.fixture
def gate() -> Iterator[BlockingGate]:
    gate = BlockingGate()
    yield gate
    gate.opened.set()


A, B, C, D = map(object_key, range(4))


def test_what_a_method_raises_fails_its_key_alone_and_is_logged_with_the_adapters_name(
    adapter: BlockingScripted,
    driver: L2Driver,
    memory: BorrowedMemory,
    clock: HandClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def burn() -> object:
        raise RuntimeError("the disk is on fire")

    adapter.script = {(verb, B): burn for verb in ("store", "load", "contains", "delete")}
    batch = items(memory, 0, 1, 2)
    assert driver.store(*batch) == driver.load(*batch) == (DONE, FAILED, DONE)
    assert driver.has(A, B, C) == driver.delete(A, B, C) == (DONE, FAILED, DONE)
    (line,) = caplog.records  # four faults at one time by the clock: one line
    assert "adapter=scripted" in line.getMessage()
    assert "the disk is on fire" in caplog.text
    clock.now += 10.0
    driver.delete(B)
    assert caplog.records[-1].getMessage().endswith("others_not_logged=3")


def test_a_pin_is_not_kept_by_a_lookup_that_failed(adapter: BlockingScripted, driver: L2Driver) -> None:
    adapter.script["contains", A] = lambda: 1 // 0
    assert driver.lookup(A) == (FAILED,)
    assert driver.delete(A) == (DONE,)


def test_what_is_not_an_outcome_is_a_failure(
    adapter: BlockingScripted, driver: L2Driver, memory: BorrowedMemory, caplog: pytest.LogCaptureFixture
) -> None:
    adapter.script["store", A] = lambda: None
    assert driver.store(*items(memory, 0)) == (FAILED,)
    assert "returned None" in caplog.text


def test_changes_to_one_object_never_overlap(
    adapter: BlockingScripted, driver: L2Driver, memory: BorrowedMemory, gate: BlockingGate
) -> None:
    adapter.script["store", A] = gate
    store = adapter.submit_store(items(memory, 0))
    gate.wait_reached()
    deleting = BlockingGate()
    deleting.opened.set()
    adapter.script["delete", A] = deleting
    delete = adapter.submit_delete([A])
    assert not deleting.reached.acquire(timeout=0.05)
    gate.opened.set()
    assert driver.finish(store) == driver.finish(delete) == (DONE,)


def test_an_object_that_is_being_deleted_is_not_promised_to_anybody(
    adapter: BlockingScripted, driver: L2Driver, gate: BlockingGate
) -> None:
    adapter.script["delete", A] = gate
    job = adapter.submit_delete([A, B])
    gate.wait_reached()
    assert driver.lookup(A) == (MISSING,)
    gate.opened.set()
    driver.finish(job)
    assert driver.lookup(A) == (DONE,)


def test_a_foreign_object_is_neither_offered_nor_replaced_nor_deleted(
    adapter: BlockingScripted, driver: L2Driver, memory: BorrowedMemory
) -> None:
    adapter.reject(A, Outcome.FOREIGN)
    batch = items(memory, 0)
    assert driver.lookup(A) == driver.load(*batch) == driver.delete(A) == (MISSING,)
    assert driver.store(*batch) == (REJECTED,)
    assert adapter.calls == []


def test_close_answers_what_never_started_and_what_is_stuck_and_releases_when_the_thread_is_back(
    adapter: BlockingScripted,
    driver: L2Driver,
    memory: BorrowedMemory,
    gate: BlockingGate,
    caplog: pytest.LogCaptureFixture,
) -> None:
    adapter.script = {("store", A): gate, ("store", B): gate}
    stuck = adapter.submit_store(items(memory, 3, 0, 1))
    gate.wait_reached()
    gate.wait_reached()
    unstarted = adapter.submit_store(items(memory, 2))
    adapter.close(0.05)
    assert driver.done(stuck) == JobDone(stuck, (DONE, FAILED, FAILED), released=False)
    assert driver.done(unstarted) == JobDone(unstarted, (FAILED,), released=True)
    assert "objects=2" in caplog.text
    assert not adapter.was_stopped.is_set()
    assert driver.adapter.completions().drain() == []

    gate.opened.set()
    driver.wait_released(stuck)
    assert adapter.was_stopped.wait(WAIT_SECONDS)
    assert driver.answers() == {stuck: 1, unstarted: 1}
    assert ("store", C) not in adapter.calls


def test_a_thread_that_was_queued_does_not_start_after_close_timed_out(
    adapter: BlockingScripted, driver: L2Driver, memory: BorrowedMemory, gate: BlockingGate
) -> None:
    adapter.script["store", A] = gate
    first, second = (adapter.submit_store(items(memory, 0)) for _ in range(2))
    gate.wait_reached()
    adapter.close(0.05)
    assert driver.finish(first) == (FAILED,)
    assert driver.finish(second) == (FAILED,)
    gate.opened.set()
    assert adapter.was_stopped.wait(WAIT_SECONDS)
    assert adapter.calls == [("store", A)]


def test_closing_again_waits_for_what_was_stuck(
    adapter: BlockingScripted, memory: BorrowedMemory, gate: BlockingGate
) -> None:
    adapter.script["store", A] = gate
    adapter.submit_store(items(memory, 0))
    gate.wait_reached()
    for _ in range(2):
        adapter.close(0.02)
        assert not adapter.was_stopped.is_set()
    threading.Timer(0.05, gate.opened.set).start()
    adapter.close(WAIT_SECONDS)
    assert adapter.was_stopped.is_set()


def test_a_stuck_lookup_is_answered_too(adapter: BlockingScripted, driver: L2Driver, gate: BlockingGate) -> None:
    adapter.script["contains", A] = gate
    job = adapter.submit_lookup([A, B])
    gate.wait_reached()
    adapter.close(0.05)
    assert driver.done(job) == JobDone(job, (FAILED, FAILED), released=True)
    gate.opened.set()
    assert adapter.was_stopped.wait(WAIT_SECONDS)
    assert driver.answers() == {job: 1}
    assert adapter.calls == [("contains", A)]


def test_threads_are_daemons_with_the_adapters_name_and_end_with_it(adapter: BlockingScripted) -> None:
    mine = [thread for thread in threading.enumerate() if "l2-scripted" in thread.name]
    assert len(mine) == 3
    assert all(thread.daemon for thread in mine)
    adapter.close(0)
    assert not any(thread.is_alive() for thread in mine)


def test_what_stopping_raises_is_logged(memory: BorrowedMemory, caplog: pytest.LogCaptureFixture) -> None:
    class Untidy(BlockingScripted):
        def stopped(self) -> None:
            raise OSError("cannot close")

    with caplog.at_level(logging.ERROR):
        Untidy(adapter_context(memory)).close(WAIT_SECONDS)
    assert "cannot close" in caplog.text
