"""A fixed number of daemon threads that take tasks from two lanes."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

logger = logging.getLogger(__name__)

Task = TypeVar("Task")

URGENT_RUN_MAX: Final = 16
"""So many urgent tasks are taken in a row while others wait; then one of the others has its turn."""


class WorkerPool(Generic[Task]):
    """Runs `run(task)` for each task, `workers` at a time, urgent ones first.  `on_stopped` is called once, by the last
    thread to end."""

    def __init__(self, name: str, workers: int, run: Callable[[Task], None], on_stopped: Callable[[], None]) -> None:
        self._name = name
        self._run = run
        self._on_stopped = on_stopped
        self._changed = threading.Condition()
        # All below is guarded by _changed.
        self._urgent: deque[Task] = deque()
        self._others: deque[Task] = deque()
        self._urgent_run = 0
        self._busy = 0
        self._alive = workers
        self._closing = False
        self._threads = [threading.Thread(target=self._work, name=f"{name}-{i}", daemon=True) for i in range(workers)]
        for thread in self._threads:
            thread.start()

    def submit(self, tasks: Iterable[Task]) -> bool:
        """Run these when a thread is free.  False, and nothing is run, once the pool is closing."""
        return self._add(self._others, tasks)

    def submit_urgent(self, tasks: Iterable[Task]) -> bool:
        """Run these before what `submit` was given.  False, and nothing is run, once the pool is closing."""
        return self._add(self._urgent, tasks)

    def close(self, deadline_seconds: float) -> list[Task]:
        """Finish what is queued if that takes no longer than the deadline, and stop.  Returns the tasks that were never
        started.  A thread that is still in a task then ends after it."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            self._changed.wait_for(self._is_idle, max(deadline_seconds, 0.0))
            unstarted = [*self._urgent, *self._others]
            self._urgent.clear()
            self._others.clear()
            stuck = self._busy
            self._changed.notify_all()
        if not stuck:
            for thread in self._threads:  # none of them runs a task: they are about to end
                thread.join()
        return unstarted

    def _add(self, lane: deque[Task], tasks: Iterable[Task]) -> bool:
        with self._changed:
            if self._closing:
                return False
            before = len(lane)
            lane.extend(tasks)
            self._changed.notify(len(lane) - before)
            return True

    def _is_idle(self) -> bool:
        return not (self._busy or self._urgent or self._others)

    def _take(self) -> Task | None:
        """The next task, or None when there is none; the caller holds _changed."""
        if self._urgent and (self._urgent_run < URGENT_RUN_MAX or not self._others):
            self._urgent_run += 1
            return self._urgent.popleft()
        self._urgent_run = 0
        return self._others.popleft() if self._others else None

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
            while (task := self._take()) is None:
                if self._closing:
                    return False
                self._changed.wait()
            self._busy += 1
        try:
            self._run(task)
        except Exception:  # a thread's top: one task must not end the pool
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
