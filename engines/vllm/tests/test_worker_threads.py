from __future__ import annotations

import os
import queue
import threading

import pytest

from lmcache_vllm import worker_threads
from lmcache_vllm.worker_threads import TransferThread


def test_work_is_done_in_order_and_to_the_end() -> None:
    thread, done = TransferThread("t"), queue.SimpleQueue[int]()
    for number in range(50):
        assert thread.submit(lambda number=number: done.put(number))  # type: ignore[misc]
    thread.stop()
    assert thread.join(10)
    assert [done.get() for _ in range(50)] == list(range(50))
    assert not thread.submit(lambda: None)


def test_a_thread_that_was_never_needed_ends_at_once() -> None:
    thread = TransferThread("t")
    thread.stop()
    assert thread.join(0)


def test_what_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_threads, "QUEUE_MAX", 2)
    thread, started, proceed = TransferThread("t"), threading.Event(), threading.Event()

    def wait() -> None:
        started.set()
        proceed.wait(10)

    assert thread.submit(wait)
    assert started.wait(10)
    assert [thread.submit(lambda: None) for _ in range(3)] == [True, True, False]
    thread.stop()
    assert not thread.join(0.01)
    proceed.set()
    assert thread.join(10)


def test_it_is_not_bound_to_the_core_of_the_model() -> None:
    allowed = os.sched_getaffinity(os.getppid())
    before = os.sched_getaffinity(0)
    seen: queue.SimpleQueue[set[int]] = queue.SimpleQueue()
    thread = TransferThread("t")
    os.sched_setaffinity(0, {min(before)})
    try:
        thread.submit(lambda: seen.put(os.sched_getaffinity(0)))
        assert seen.get(timeout=10) == allowed | {min(before)}
        assert os.sched_getaffinity(0) == {min(before)}
    finally:
        os.sched_setaffinity(0, before)
        thread.stop()
        thread.join()
