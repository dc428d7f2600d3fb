"""Threads of the server beside the router's: pools that answer requests, and the reaper that applies deadlines."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Sequence
from queue import SimpleQueue

Task = Callable[[], None]

QUEUE_MAX = 4096
"""Requests that may wait for one thread; beyond it they are answered negatively at once."""
UNREFUSED_MAX = 65_536
"""The same for requests that `Handler.may_be_refused` is False of: they wait behind the others, and are bounded, too."""


class Pool:
    """`size` threads, whose bodies are `body(i)`.  A task must not raise."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size
        self._shared: SimpleQueue[Task | None] = SimpleQueue()

    def submit(self, task: Task, limit: int) -> bool:
        """Run on any thread.  False when `limit` tasks for each thread are waiting."""
        return _put(self._shared, task, limit * self.size)

    def body(self, index: int) -> Callable[[], None]:
        return lambda: _work(self._shared)

    def stop(self) -> None:
        for _ in range(self.size):
            self._shared.put(None)

    @property
    def waiting(self) -> int:
        return self._shared.qsize()


class AffinePool:
    """Like `Pool`, but everything submitted for one connection runs on one thread, in order."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size
        self._queues: list[SimpleQueue[Task | None]] = [SimpleQueue() for _ in range(size)]

    def submit(self, connection: bytes, task: Task, limit: int) -> bool:
        """Run on the connection's thread.  False when `limit` tasks are waiting for it."""
        return _put(self._queues[zlib.crc32(connection) % self.size], task, limit)

    def body(self, index: int) -> Callable[[], None]:
        return lambda: _work(self._queues[index])

    def stop(self) -> None:
        for queue in self._queues:
            queue.put(None)

    def waiting_for(self, connection: bytes) -> int:
        """Tasks that wait for this connection's thread, its own and those of others that share it."""
        return self._queues[zlib.crc32(connection) % self.size].qsize()

    @property
    def waiting(self) -> int:
        return sum(queue.qsize() for queue in self._queues)


def _put(queue: SimpleQueue[Task | None], task: Task, limit: int) -> bool:
    if queue.qsize() >= limit:
        return False
    queue.put(task)
    return True


def _work(queue: SimpleQueue[Task | None]) -> None:
    while (task := queue.get()) is not None:
        task()
        del task  # a request's frames must not live on until the next one comes


class Reaper:
    """`run` is its thread's body: it calls every check once per period."""

    def __init__(self, period_seconds: float, checks: Sequence[Callable[[], None]]) -> None:
        self._period = period_seconds
        self._checks = checks
        self._stop = threading.Event()

    def run(self) -> None:
        while not self._stop.wait(self._period):
            faults = []
            for check in self._checks:
                try:
                    check()
                except Exception as error:  # noqa: BLE001 - the other checks come first
                    faults.append(error)
            if faults:
                raise faults[0]

    def stop(self) -> None:
        self._stop.set()
