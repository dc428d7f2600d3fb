"""What workers have prepared and not committed yet.

A commit names a range of a request and not the prepare that it belongs to, and stock workers prepare from several threads.
So a range of a request has at most one open store, whose slots have one writer, and its reads end together, when as many
commits as prepares have come.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final, NamedTuple

from lmcache_core.contracts.request_module import Worker
from lmcache_core.contracts.storage import SlotReferences

MISSES_MAX: Final = 8192
"""Reads of one worker that are remembered while their commit has not come; of more, the oldest misses are forgotten."""


INSTANCES_MAX: Final = 4096
"""Instance ids whose uncommitted reads are remembered after their registration; of more, the oldest are forgotten."""


class Ticket(NamedTuple):
    """What a prepare and its commit have in common."""

    request_id: str
    salt: str
    start: int
    end: int
    last_hash: bytes


class OpenStore(NamedTuple):
    """Slots that a worker fills, and the indexes of their chunks in the range."""

    worker: Worker
    references: SlotReferences
    indexes: Sequence[int]


class OpenStores:
    """By instance id, since a commit may come after its registration has ended, and ticket.  Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stores: dict[int, dict[Ticket, OpenStore]] = {}

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._stores.values()))

    def has(self, instance_id: int) -> bool:
        with self._lock:
            return instance_id in self._stores

    def add(self, ticket: Ticket, store: OpenStore) -> bool:
        """False, and it was not added, while there is one with this ticket: its slots may still be written, also after
        their deadline, and a commit could mean either."""
        with self._lock:
            return self._stores.setdefault(store.worker.instance_id, {}).setdefault(ticket, store) is store

    def take(self, instance_id: int, ticket: Ticket) -> OpenStore | None:
        """The worker has answered: the caller publishes or discards the slots."""
        with self._lock:
            stores = self._stores.get(instance_id, {})
            store = stores.pop(ticket, None)
            if not stores:
                self._stores.pop(instance_id, None)
            return store

    def remove(self, ticket: Ticket, store: OpenStore) -> None:
        """The worker was not given it.  Another store that has taken its place meanwhile is left alone."""
        with self._lock:
            stores = self._stores.get(store.worker.instance_id, {})
            if stores.get(ticket) is store:
                del stores[ticket]
            if not stores:
                self._stores.pop(store.worker.instance_id, None)

    def forget(self, worker: Worker) -> None:
        """The references of this registration have ended."""
        with self._lock:
            stores = self._stores.pop(worker.instance_id, {})
            kept = {ticket: store for ticket, store in stores.items() if store.worker is not worker}
            if kept:
                self._stores[worker.instance_id] = kept


class _Reads:
    """The reads of one ticket."""

    __slots__ = ("held", "uncommitted")

    def __init__(self) -> None:
        self.uncommitted = 0
        self.held: list[tuple[Worker, SlotReferences]] = []


class OpenReads:
    """By instance id and ticket.  Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reads: dict[int, dict[Ticket, _Reads]] = {}

    def __len__(self) -> int:
        with self._lock:
            return sum(len(reads.held) for by in self._reads.values() for reads in by.values())

    def of(self, worker: Worker) -> int:
        """How many references to slots this instance has."""
        with self._lock:
            return sum(len(reads.held) for reads in self._reads.get(worker.instance_id, {}).values())

    def has(self, instance_id: int) -> bool:
        with self._lock:
            return instance_id in self._reads

    def ask(self, instance_id: int, ticket: Ticket, is_registered: bool = True) -> None:
        """A retrieve is prepared.  Its commit follows whatever the answer is, so a miss counts, too, and a refusal."""
        with self._lock:
            if not is_registered and instance_id not in self._reads and len(self._reads) >= INSTANCES_MAX:
                return
            by = self._reads.setdefault(instance_id, {})
            if len(by) >= MISSES_MAX and ticket not in by:
                missed = next((ticket for ticket, reads in by.items() if not reads.held), None)
                by.pop(missed, None) if missed else None
            by.setdefault(ticket, _Reads()).uncommitted += 1

    def add(self, worker: Worker, ticket: Ticket, references: SlotReferences) -> None:
        """What was asked for is held."""
        with self._lock:
            by = self._reads.setdefault(worker.instance_id, {})
            by.setdefault(ticket, _Reads()).held.append((worker, references))

    def remove(self, worker: Worker, ticket: Ticket, references: SlotReferences) -> None:
        """The worker was not given it.  Its commit follows all the same."""
        with self._lock:
            reads = self._reads.get(worker.instance_id, {}).get(ticket)
            if reads is not None and (worker, references) in reads.held:
                reads.held.remove((worker, references))

    def commit(self, instance_id: int, ticket: Ticket) -> Sequence[SlotReferences]:
        """One reader has ended.  Returns references without a reader, which the caller releases: nothing while another
        reader with this ticket may go on, since which of them has ended cannot be known."""
        with self._lock:
            by = self._reads.get(instance_id, {})
            reads = by.get(ticket)
            if reads is None:
                return ()
            reads.uncommitted -= 1
            if reads.uncommitted > 0:
                return ()
            del by[ticket]
            if not by:
                del self._reads[instance_id]
            return [references for _, references in reads.held]

    def forget(self, worker: Worker) -> None:
        """The references of this registration have ended.  Commits that have not come still count: a thread of a worker that
        was silent may send one after the worker was registered again, and it must not end a later read."""
        with self._lock:
            by = self._reads.pop(worker.instance_id, {})
            for reads in by.values():
                reads.held = [each for each in reads.held if each[0] is not worker]
            if by:
                self._reads[worker.instance_id] = by  # the latest
            while len(self._reads) > INSTANCES_MAX:
                ended = next((each for each, by in self._reads.items() if not any(r.held for r in by.values())), None)
                if ended is None:
                    return
                del self._reads[ended]
