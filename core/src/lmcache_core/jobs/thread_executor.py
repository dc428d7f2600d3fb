"""Runs an adapter's work on threads."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from lmcache_core.jobs.executor import STOP_SECONDS, Executor, Task
from lmcache_core.jobs.object_guard import Turn
from lmcache_core.jobs.worker_pool import WorkerPool
from lmcache_core.model.results import Outcome

logger = logging.getLogger(__name__)

Value = TypeVar("Value")


class ThreadExecutor(Executor):
    """`workers` daemon threads for transfers and one for lookups.  `on_stopped` is called once, after `close`, by the
    last of them to end."""

    awaits = False

    def __init__(self, name: str, workers: int, on_stopped: Callable[[], None]) -> None:
        self._name = name
        self._closing = threading.Event()
        self._stopped = threading.Event()
        self._lock = threading.Lock()  # guards the two below
        self._on_stopped = on_stopped
        self._pools_alive = 2
        # A batch of lookups is one piece of work: it is not worth a hand-over between threads for each key.
        self._transfers = WorkerPool[Sequence[Task]](name, workers, _run_all, self._pool_stopped)
        self._lookups = WorkerPool[Sequence[Task]](f"{name}-lookup", 1, _run_all, self._pool_stopped)

    def submit(self, tasks: Sequence[Task]) -> bool:
        return self._transfers.submit([(task,) for task in tasks])

    def submit_urgent(self, tasks: Sequence[Task]) -> bool:
        return self._transfers.submit_urgent([(task,) for task in tasks])

    def submit_lookups(self, tasks: Sequence[Task]) -> bool:
        return self._lookups.submit([tasks])

    def close(self, deadline_seconds: float) -> Sequence[Task]:
        self._closing.set()
        end = time.monotonic() + deadline_seconds
        pools = (self._lookups, self._transfers)
        for pool in pools:
            pool.begin_close()
        unstarted = [task for pool in pools for tasks in pool.end_close(end) for task in tasks]
        end = max(end, time.monotonic() + STOP_SECONDS)
        if not all(pool.join(end) for pool in pools):
            logger.error("the threads of an adapter did not end with it adapter=%s; they are left behind", self._name)
        return unstarted

    def wait_stopped(self, timeout_seconds: float) -> None:
        self._stopped.wait(max(timeout_seconds, 0.0))

    def new_turn(self) -> threading.Event:
        return threading.Event()

    async def wait_turn(self, turn: Turn) -> None:
        assert isinstance(turn, threading.Event)
        turn.wait()

    async def pause(self, seconds: float) -> bool:
        return not self._closing.wait(seconds)

    def _pool_stopped(self) -> None:
        with self._lock:
            self._pools_alive -= 1
            if self._pools_alive:
                return
            on_stopped, self._on_stopped = self._on_stopped, _nothing  # it belongs to the owner of this executor
        try:
            on_stopped()
        finally:
            self._stopped.set()


def _run_all(tasks: Sequence[Task]) -> None:
    for task in tasks:
        outcome = Outcome.FAILED
        try:
            outcome = run_now(task.run())
        except BaseException:  # a fault of this package, since an author's are dealt with: the job must be answered
            logger.exception("an l2 operation was lost")
        finally:
            task.settle(outcome)


def run_now(work: Coroutine[Any, Any, Value]) -> Value:
    """The result of a coroutine that is never suspended.  Raises what it raises."""
    try:
        work.send(None)
    except StopIteration as end:
        value: Value = end.value
        return value
    work.close()
    raise RuntimeError("work that runs on a thread must not be suspended")


def _nothing() -> None:
    pass
