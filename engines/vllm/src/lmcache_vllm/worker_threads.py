"""A thread that does transfers one after the other."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

QUEUE_MAX: Final = 256
"""Transfers that may wait for one thread."""


class TransferThread:
    """Calls what it is given, in order. Starts with the first."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._condition = threading.Condition()
        self._queue: deque[Callable[[], None]] = deque()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def submit(self, work: Callable[[], None]) -> bool:
        """False, and it is not called, when the queue is full or the thread was stopped."""
        with self._condition:
            if self._stopping or len(self._queue) >= QUEUE_MAX:
                return False
            self._queue.append(work)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._condition.notify()
            return True

    def stop(self) -> None:
        """Nothing more is taken; what was is still called. Returns at once."""
        with self._condition:
            self._stopping = True
            self._condition.notify()

    def join(self, timeout_seconds: float | None = None) -> bool:
        """Wait for its end after `stop`. False when it has not come in time."""
        if self._thread is None:
            return True
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        _use_every_core()
        while (work := self._next()) is not None:
            work()

    def _next(self) -> Callable[[], None] | None:
        with self._condition:
            self._condition.wait_for(lambda: self._queue or self._stopping)
            return self._queue.popleft() if self._queue else None


def _use_every_core() -> None:
    """vLLM binds the thread that starts this one to a core where the model computes. The process's parent may use what
    was given to the engine."""
    try:
        os.sched_setaffinity(0, os.sched_getaffinity(0) | os.sched_getaffinity(os.getppid()))
    except OSError:
        pass  # then it runs where it was started
