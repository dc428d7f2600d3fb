"""What workers have prepared and not committed yet."""

from __future__ import annotations

import threading
from typing import Generic, NamedTuple, TypeVar

from lmcache_core.contracts.request_module import Worker

Item = TypeVar("Item")


class Ticket(NamedTuple):
    """What a prepare and its commit have in common."""

    salt: str
    start: int
    end: int
    last_hash: bytes


class OpenTransfers(Generic[Item]):
    """Items by worker and ticket.  A ticket has several where it was prepared again before it was committed, the latest one
    last.  Whoever takes an item out owns what it holds.  Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: dict[int, dict[Ticket, list[Item]]] = {}  # by token of the worker

    def __len__(self) -> int:
        with self._lock:
            return sum(len(items) for by in self._items.values() for items in by.values())

    def of(self, worker: Worker) -> int:
        """How many this worker has."""
        with self._lock:
            return sum(map(len, self._items.get(worker.token, {}).values()))

    def add(self, worker: Worker, ticket: Ticket, item: Item) -> None:
        with self._lock:
            self._items.setdefault(worker.token, {}).setdefault(ticket, []).append(item)

    def latest(self, worker: Worker, ticket: Ticket) -> Item | None:
        """Left where it is."""
        with self._lock:
            items = self._items.get(worker.token, {}).get(ticket)
            return items[-1] if items else None

    def take(self, worker: Worker, ticket: Ticket) -> Item | None:
        """The latest one, out of it."""
        with self._lock:
            by = self._items.get(worker.token, {})
            items = by.get(ticket, [])
            item = items.pop() if items else None
            if not items:
                by.pop(ticket, None)
            return item

    def take_all(self, worker: Worker, ticket: Ticket) -> list[Item]:
        with self._lock:
            return self._items.get(worker.token, {}).pop(ticket, [])

    def remove(self, worker: Worker, ticket: Ticket, item: Item) -> None:
        """This one, if it is still there."""
        with self._lock:
            by = self._items.get(worker.token, {})
            items = by.get(ticket, [])
            if item in items:
                items.remove(item)
            if not items:
                by.pop(ticket, None)

    def forget(self, worker: Worker) -> None:
        """All of it, when the worker's holds have ended."""
        with self._lock:
            self._items.pop(worker.token, None)
