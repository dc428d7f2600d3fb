"""A fixed number of daemon threads that take tasks from two lanes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from lmcache_core.jobs.lanes import Lanes

logger = logging.getLogger(__name__)

Task = TypeVar("Task")


class WorkerPool(Generic[Task]):
    """Runs `run(task)` for each task, `workers` at a time, urgent ones first.  `on_stopped` is called once, by the last
    thread to end."""

    def __init__(self, name: str, workers: int, run: Callable[[Task], None], on_stopped: Callable[[], None]) -> None:
        self._name = name
        self._run = run
        self._on_stopped = on_stopped
        self._changed = threading.Condition()
        # All below is guarded by _changed.
        self._lanes = Lanes[Task]()
        self._busy = 0
        self._alive = workers
        self._closing = False
        self._threads = [threading.Thread(target=self._work, name=f"{name}-{i}", daemon=True) for i in range(workers)]
        for thread in self._threads:
            thread.start()

    def submit(self, tasks: Iterable[Task]) -> bool:
        """Run these when a thread is free.  False, and nothing is run, once the pool is closing."""
        return self._add(self._lanes.add, tasks)

    def submit_urgent(self, tasks: Iterable[Task]) -> bool:
        """Run these before what `submit` was given.  False, and nothing is run, once the pool is closing."""
        return self._add(self._lanes.add_urgent, tasks)

    def begin_close(self) -> None:
        """Take nothing more.  What is queued goes on; threads with nothing to do end."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def end_close(self, end: float) -> list[Task]:
        """Wait until all is done, or `end` by the monotonic clock.  Returns the tasks that were never started.  A thread
        that is still in a task ends after it."""
        with self._changed:
            self._changed.wait_for(self._is_idle, max(end - time.monotonic(), 0.0))
            unstarted = self._lanes.clear()
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

    def _add(self, add: Callable[[Iterable[Task]], None], tasks: Iterable[Task]) -> bool:
        with self._changed:
            if self._closing:
                return False
            before = len(self._lanes)
            add(tasks)
            self._changed.notify(len(self._lanes) - before)
            return True

    def _is_idle(self) -> bool:
        return not (self._busy or self._lanes)

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
            while (task := self._lanes.take()) is None:
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


def _nothing() -> None:
    pass
