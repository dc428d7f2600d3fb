"""Executors: where an adapter's work runs, and the one that runs it on threads.

What happens around an author's method (`object_verbs.py`) is written once, as coroutines.  On threads they run from
start to end without ever being suspended; on an event loop (`loop_executor.py`) they take turns.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from lmcache_core import Outcome

logger = logging.getLogger(__name__)


Queued = TypeVar("Queued")

URGENT_RUN_MAX: Final = 16
"""Urgent tasks taken in a row while others wait; then one of the others is taken."""


class TaskQueue(Generic[Queued]):
    """Two queues with one outlet.  Its owner's lock guards it."""

    def __init__(self) -> None:
        self._urgent: deque[Queued] = deque()
        self._others: deque[Queued] = deque()
        self._urgent_run = 0

    def __len__(self) -> int:
        return len(self._urgent) + len(self._others)

    def add(self, tasks: Iterable[Queued]) -> None:
        self._others.extend(tasks)

    def add_urgent(self, tasks: Iterable[Queued]) -> None:
        self._urgent.extend(tasks)

    def take(self) -> Queued | None:
        """The next task, or None when there is none."""
        if self._urgent and (self._urgent_run < URGENT_RUN_MAX or not self._others):
            self._urgent_run += 1
            return self._urgent.popleft()
        self._urgent_run = 0
        return self._others.popleft() if self._others else None

    def clear(self) -> list[Queued]:
        """Everything that waits, no longer waiting."""
        waiting = [*self._urgent, *self._others]
        self._urgent.clear()
        self._others.clear()
        return waiting


Result = TypeVar("Result")
Method = Callable[..., Result | Awaitable[Result]]
"""What an author wrote, plain or `async`."""

STOP_SECONDS: Final = 0.75
"""Seconds: the least time for `stopped`, and the most for ending what still runs in the background."""


class Turn(Protocol):
    """An event of threads or of an event loop, set when a change of an object may begin."""

    def set(self) -> object:
        """Set it.  Called without a lock, by the owner of the previous turn."""


class Task(Protocol):
    """Work on one object.  Exactly one `settle` ends it, whether it was run or not."""

    __slots__ = ()

    def run(self) -> Coroutine[Any, Any, Outcome]:
        """The work; at most once."""

    def settle(self, outcome: Outcome) -> bool:
        """It has ended: no byte of its buffer is touched any more.  False: another outcome was reported before."""

    def time_out(self) -> None:
        """Report a time-out of work that has not ended; `settle` will follow."""


class Executor(Protocol):
    """Runs tasks.  `submit*` and `close` are called from any thread and the former never block; the rest is called by
    the coroutines it runs."""

    awaits: bool
    """Are the author's methods `async` here?"""

    def submit(self, tasks: Sequence[Task]) -> bool:
        """False, and nothing is taken, once it is closing."""

    def submit_urgent(self, tasks: Sequence[Task]) -> bool:
        """Before what `submit` was given."""

    def submit_lookups(self, tasks: Sequence[Task]) -> bool:
        """Beside all others, which never keep these waiting."""

    def close(self, deadline_seconds: float) -> Sequence[Task]:
        """Finish what is queued if that takes no longer than the deadline, and stop.  Returns what was never started;
        what is still running then is settled when it ends.  Once only."""

    def wait_stopped(self, timeout_seconds: float) -> None:
        """After `close`: until everything has ended and was given back, or the time is over."""

    def new_turn(self) -> Turn: ...

    async def wait_turn(self, turn: Turn) -> None:
        """Until it is set."""

    async def pause(self, seconds: float) -> bool:
        """False, at once, when the executor is closing."""


Work = TypeVar("Work")


class WorkerPool(Generic[Work]):
    """Runs `run(task)` for each task, `workers` at a time, urgent ones first.  `on_stopped` is called once, by the last
    thread to end."""

    def __init__(self, name: str, workers: int, run: Callable[[Work], None], on_stopped: Callable[[], None]) -> None:
        self._name = name
        self._run = run
        self._on_stopped = on_stopped
        self._changed = threading.Condition()
        # All below is guarded by _changed.
        self._queue = TaskQueue[Work]()
        self._busy = 0
        self._alive = workers
        self._closing = False
        self._threads = [threading.Thread(target=self._work, name=f"{name}-{i}", daemon=True) for i in range(workers)]
        for thread in self._threads:
            thread.start()

    def submit(self, tasks: Iterable[Work]) -> bool:
        """Run these when a thread is free.  False, and nothing is run, once the pool is closing."""
        return self._add(self._queue.add, tasks)

    def submit_urgent(self, tasks: Iterable[Work]) -> bool:
        """Run these before what `submit` was given.  False, and nothing is run, once the pool is closing."""
        return self._add(self._queue.add_urgent, tasks)

    def begin_close(self) -> None:
        """Take nothing more.  What is queued goes on; threads with nothing to do end."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def end_close(self, end: float) -> list[Work]:
        """Wait until all is done, or `end` by the monotonic clock.  Returns the tasks that were never started.  A thread
        that is still in a task ends after it."""
        with self._changed:
            self._changed.wait_for(self._is_idle, max(end - time.monotonic(), 0.0))
            unstarted = self._queue.clear()
            self._changed.notify_all()
            return unstarted

    def join(self, end: float) -> bool:
        """After `end_close`: wait until `end` by the monotonic clock for the threads to end, unless one is in a task.
        False where one is left that should have ended."""
        if self._busy:
            return True
        for thread in self._threads:
            thread.join(max(end - time.monotonic(), 0.0))
        return not any(thread.is_alive() for thread in self._threads)

    def _add(self, add: Callable[[Iterable[Work]], None], tasks: Iterable[Work]) -> bool:
        with self._changed:
            if self._closing:
                return False
            before = len(self._queue)
            add(tasks)
            self._changed.notify(len(self._queue) - before)
            return True

    def _is_idle(self) -> bool:
        return not (self._busy or self._queue)

    def _work(self) -> None:
        while self._work_once():
            pass
        with self._changed:
            self._alive -= 1
            if self._alive:
                return
            on_stopped, self._on_stopped = self._on_stopped, _nothing  # nor does the pool hold its owner any longer
        on_stopped()

    def _work_once(self) -> bool:
        with self._changed:
            while (task := self._queue.take()) is None:
                if self._closing:
                    return False
                self._changed.wait()
            self._busy += 1
        try:
            self._run(task)
        except BaseException:  # a thread's top: one task must not end the pool
            logger.exception("a task raised pool=%s", self._name)
        finally:
            del task  # or an idle thread keeps the last task's buffer
            with self._changed:
                self._busy -= 1
                if self._closing:
                    self._changed.notify_all()
        return True


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
