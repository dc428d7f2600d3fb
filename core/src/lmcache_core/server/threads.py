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
LAST_CALL_SECONDS = 2.0
"""How long a router goes on answering after `stop`, if engines go on asking."""


class Pool:
    """`size` threads, whose bodies are `body(i)`.  A task must not raise.

    Tasks of one connection run on one thread, in order; where the threads share one queue, on any of them."""

    def __init__(self, name: str, size: int, shares_queue: bool = False) -> None:
        self.name = name
        self.size = size
        shared: SimpleQueue[Task | None] = SimpleQueue()
        self._queues = [shared if shares_queue else SimpleQueue() for _ in range(size)]
        self._threads_per_queue = size if shares_queue else 1

    def submit(self, connection: bytes, task: Task, limit: int) -> bool:
        """False when `limit` tasks for each of the connection's threads are waiting."""
        queue = self._queue_of(connection)
        if queue.qsize() >= limit * self._threads_per_queue:
            return False
        queue.put(task)
        return True

    def body(self, index: int) -> Callable[[], None]:
        return lambda: _work(self._queues[index])

    def stop(self) -> None:
        for queue in self._queues:
            queue.put(None)

    def waiting_for(self, connection: bytes) -> int:
        """Tasks that wait for this connection's thread, its own and those of others that share it."""
        return self._queue_of(connection).qsize()

    @property
    def waiting(self) -> int:
        return sum(queue.qsize() for queue in set(self._queues))

    def _queue_of(self, connection: bytes) -> SimpleQueue[Task | None]:
        return self._queues[zlib.crc32(connection) % self.size]


def _work(queue: SimpleQueue[Task | None]) -> None:
    while (task := queue.get()) is not None:
        task()
        del task  # a request's frames must not live on until the next one comes


class Reaper:
    """`run` is its thread's body: it calls every check once per period."""

    def __init__(self, period_seconds: float, checks: Sequence[Callable[[], None]]) -> None:
        self._period = period_seconds
        self._checks = [*checks]
        self._stop = threading.Event()

    def add(self, check: Callable[[], None]) -> None:
        self._checks.append(check)

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
