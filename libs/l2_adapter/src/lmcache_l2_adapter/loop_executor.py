"""Runs an adapter's work on an event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Final

from lmcache_core import FaultLog, Outcome, SystemClock
from lmcache_l2_adapter.executor import STOP_SECONDS, Executor, Task, TaskQueue, Turn

logger = logging.getLogger(__name__)


Hook = Callable[[], Awaitable[object]]


class LoopThread:
    """Lives from `start` until its work is done, whatever is raised on it meanwhile."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.stop_seconds = STOP_SECONDS
        """Time limit of `stopped`, read when the work is done."""
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        self._faults = FaultLog(logger, SystemClock(), f"thread={name}")

    def start(self, started: Hook, work: Hook, stopped: Hook, timeout_seconds: float) -> None:
        """Run `started`, `work` and `stopped` on the loop, one after the other, and wait until the first is done.

        What it raises is raised here, or TimeoutError when it takes too long; then the others are not run, and thread
        and loop are gone, unless it would not be cancelled."""
        ready: Future[None] = Future()
        # The hooks are known to the running thread alone: their owner must not be kept by its own thread's object.
        thread = threading.Thread(
            target=self._run, args=(started, work, stopped, timeout_seconds, ready), name=self.name, daemon=True
        )
        try:
            thread.start()
        except BaseException:
            self._loop.close()
            raise
        self._thread = thread
        try:
            ready.result(timeout_seconds + STOP_SECONDS)
        except BaseException:
            ready.cancel()
            if not self.join(2 * STOP_SECONDS):
                logger.error("starting cannot be cancelled thread=%s; the thread is left behind", self.name)
            raise
        finally:
            del ready  # it holds what was raised, which holds this frame

    def post(self, function: Callable[[], object]) -> bool:
        """Call it on the loop soon.  False, and it is not called, when the loop has ended.  Any thread; never blocks."""
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            return False
        return True

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the end, at most `timeout_seconds`.  True when the executor has ended."""
        assert self._thread is not None
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    # In the thread.

    def _run(self, started: Hook, work: Hook, stopped: Hook, timeout_seconds: float, ready: Future[None]) -> None:
        life = self._loop.create_task(self._live(started, work, stopped, timeout_seconds, ready))
        try:
            while not (life.done() or self._loop.is_closed()):
                try:
                    self._loop.run_until_complete(life)
                except BaseException:  # noqa: BLE001 - a thread's top: what leaves any task stops the loop, and it goes on
                    if not life.done():
                        self._faults.exception("a task ended the event loop, which goes on")
            if life.done() and not life.cancelled() and (error := life.exception()):
                logger.critical("an event loop ended too early thread=%s", self.name, exc_info=error)
        finally:
            if not ready.done():
                ready.set_exception(RuntimeError("the event loop ended"))
            self._loop.close()

    async def _live(
        self, started: Hook, work: Hook, stopped: Hook, timeout_seconds: float, ready: Future[None]
    ) -> None:
        try:
            async with asyncio.timeout(timeout_seconds):
                await started()
        except BaseException as error:  # noqa: BLE001 - it is raised where `start` waits
            await _end_background()
            if ready.set_running_or_notify_cancel():
                is_plain = isinstance(error, Exception)
                ready.set_exception(error if is_plain else RuntimeError(f"the event loop ended: {error!r}"))
            del ready  # as in `start`
            return
        if ready.set_running_or_notify_cancel():
            ready.set_result(None)
            await _outlast(work)
        try:
            async with asyncio.timeout(self.stop_seconds):
                await stopped()
        except BaseException:  # a plugin's boundary: what it left running is to end all the same
            logger.exception("stopping an l2 adapter raised thread=%s", self.name)
        await _end_background()


async def _outlast(work: Hook) -> None:
    while True:
        try:
            await work()
            return
        except asyncio.CancelledError:
            pass  # an author cancelled all tasks of the loop; this one goes on


async def _end_background() -> None:
    """Cancel what authors left running here."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=STOP_SECONDS)
    await asyncio.get_running_loop().shutdown_asyncgens()


CANCEL_GRACE_SECONDS: Final = 0.5
"""Time that a cancelled operation has to clean up before it is reported without its buffer."""


class _Pool:
    """Operations that may run at the same time.  The executor's lock guards it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.queue = TaskQueue[Task]()
        self.busy = 0

    @property
    def is_idle(self) -> bool:
        return not (self.busy or self.queue)


class _Operation:
    """A task that runs.  Belongs to the loop."""

    __slots__ = ("coroutine", "is_over_time", "pool", "task", "timer")

    def __init__(self, pool: _Pool, task: Task, loop: asyncio.AbstractEventLoop, timeout_seconds: float) -> None:
        self.pool = pool
        self.task = task
        self.coroutine = loop.create_task(task.run())
        self.timer = loop.call_later(timeout_seconds, self._expire, loop)
        self.is_over_time = False

    def outcome(self) -> Outcome:
        """Its outcome, after its end.  DONE stays DONE, even if it was about to be cancelled."""
        outcome = Outcome.FAILED
        if self.coroutine.cancelled():
            pass  # its time was over, or the executor is closing, or the author cancelled it
        elif error := self.coroutine.exception():  # a fault of this package, since an author's are dealt with
            logger.error("an l2 operation was lost", exc_info=error)
        else:
            outcome = self.coroutine.result()
        return Outcome.TIMED_OUT if self.is_over_time and outcome is not Outcome.DONE else outcome

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        self.is_over_time = True
        self.coroutine.cancel()
        self.timer = loop.call_later(CANCEL_GRACE_SECONDS, self.task.time_out)


class LoopExecutor(Executor):
    """Up to `concurrency` transfers at a time, loads first, and beside them as many lookups, on one loop in one daemon
    thread.

    An operation that takes longer than `timeout_seconds`, from its start and with all its attempts, is cancelled and
    TIMED_OUT.  One that does not end when it is cancelled keeps its buffer and its place until it does."""

    awaits = True

    def __init__(self, name: str, concurrency: int, timeout_seconds: float) -> None:
        if concurrency < 1 or timeout_seconds <= 0:
            raise ValueError("an event loop of an adapter needs concurrency >= 1 and a time-out above 0 seconds")
        self._timeout = timeout_seconds
        self._changed = threading.Condition()
        # Guarded by _changed.
        self._transfers = _Pool(concurrency)
        self._lookups = _Pool(concurrency)
        self._closing = False
        self._will_start = False
        # Belongs to the loop.
        self._running: set[_Operation] = set()
        self._no_pauses = asyncio.Event()
        self._is_last_call = False
        self._drained = asyncio.Event()
        self._loop = LoopThread(name)

    def start(self, started: Callable[[], Awaitable[None]], stopped: Callable[[], Awaitable[None]]) -> None:
        """Run `started` on the loop and wait for it; `stopped` runs there when all work has ended after `close`.
        Raises what `started` raises, or TimeoutError, and leaves no thread then."""
        self._loop.start(started, self._drained.wait, stopped, self._timeout)

    def submit(self, tasks: Sequence[Task]) -> bool:
        return self._add(self._transfers.queue.add, tasks)

    def submit_urgent(self, tasks: Sequence[Task]) -> bool:
        return self._add(self._transfers.queue.add_urgent, tasks)

    def submit_lookups(self, tasks: Sequence[Task]) -> bool:
        return self._add(self._lookups.queue.add, tasks)

    def close(self, deadline_seconds: float) -> Sequence[Task]:
        """Cancel running operations early enough for them to end by the deadline."""
        end = time.monotonic() + deadline_seconds
        grace = min(CANCEL_GRACE_SECONDS, deadline_seconds / 4)
        with self._changed:
            self._closing = True
            self._loop.post(self._no_pauses.set)
            self._changed.wait_for(self._is_idle, max(deadline_seconds - grace, 0.0))
            unstarted = [*self._transfers.queue.clear(), *self._lookups.queue.clear()]
            self._loop.post(self._cancel_all)
            is_idle = self._changed.wait_for(self._is_idle, max(end - time.monotonic(), 0.0))
        seconds_left = max(end - time.monotonic(), 0.0)
        self._loop.stop_seconds = max(seconds_left, STOP_SECONDS)
        self._loop.post(self._end)
        if is_idle and not self._loop.join(seconds_left + 2 * STOP_SECONDS):
            logger.error("an event loop did not end with its adapter thread=%s; it is left behind", self._loop.name)
        return unstarted

    def wait_stopped(self, timeout_seconds: float) -> None:
        self._loop.join(max(timeout_seconds, 0.0))

    def new_turn(self) -> asyncio.Event:
        return asyncio.Event()

    async def wait_turn(self, turn: Turn) -> None:
        assert isinstance(turn, asyncio.Event)
        await turn.wait()

    async def pause(self, seconds: float) -> bool:
        operation = asyncio.current_task()
        if operation is not None and operation.cancelling():
            return False  # its time is over, though what ran made another error of that; the next try would never be cancelled
        try:
            async with asyncio.timeout(seconds):
                await self._no_pauses.wait()
        except TimeoutError:
            return True
        return False

    def _add(self, add: Callable[[Sequence[Task]], None], tasks: Sequence[Task]) -> bool:
        with self._changed:
            if self._closing:
                return False
            if not self._will_start and not self._loop.post(self._start_some):
                return False
            self._will_start = True  # not before the lock is free
            add(tasks)
            return True

    def _is_idle(self) -> bool:
        return self._transfers.is_idle and self._lookups.is_idle

    # On the loop.

    def _start_some(self) -> None:
        ready: list[tuple[_Pool, Task]] = []
        with self._changed:
            self._will_start = False
            for pool in (self._lookups, self._transfers):
                while pool.busy < pool.limit and (task := pool.queue.take()) is not None:
                    pool.busy += 1
                    ready.append((pool, task))
        for pool, task in ready:
            operation = _Operation(pool, task, asyncio.get_running_loop(), self._timeout)
            self._running.add(operation)
            operation.coroutine.add_done_callback(partial(self._ended, operation))

    def _ended(self, operation: _Operation, _: asyncio.Task[Outcome]) -> None:
        operation.timer.cancel()
        operation.task.settle(operation.outcome())
        self._running.discard(operation)
        with self._changed:
            operation.pool.busy -= 1
            if self._closing:
                self._changed.notify_all()
        if self._is_last_call:
            self._end()
        else:
            self._start_some()

    def _cancel_all(self) -> None:
        for operation in self._running:
            operation.coroutine.cancel()

    def _end(self) -> None:
        self._is_last_call = True
        if not self._running:
            self._drained.set()
