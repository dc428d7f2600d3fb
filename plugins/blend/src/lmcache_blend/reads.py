"""Segments that workers read."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from lmcache_core import SlotReferences, Worker

READS_MAX: Final = 8192
"""Requests of instances whose commits have not come; of more, the oldest without references is forgotten."""


@dataclass(slots=True, eq=False)
class _Reads:
    uncommitted: int = 0
    held: list[tuple[Worker, SlotReferences]] = field(default_factory=list)


class SegmentReads:
    """By instance and request: they end together, when as many commits as prepares have come, because which of several readers
    has ended cannot be known.  Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reads: OrderedDict[tuple[int, str], _Reads] = OrderedDict()

    def __len__(self) -> int:
        """References to slots."""
        with self._lock:
            return sum(len(reads.held) for reads in self._reads.values())

    def ask(self, instance_id: int, request_id: str) -> None:
        """One is prepared.  Its commit follows whatever the answer is."""
        with self._lock:
            if len(self._reads) >= READS_MAX and (instance_id, request_id) not in self._reads:
                idle = next((name for name, reads in self._reads.items() if not reads.held), None)
                self._reads.pop(idle, None) if idle else None
            self._reads.setdefault((instance_id, request_id), _Reads()).uncommitted += 1

    def add(self, worker: Worker, request_id: str, references: SlotReferences) -> None:
        with self._lock:
            reads = self._reads.setdefault((worker.instance_id, request_id), _Reads(1))
            reads.held.append((worker, references))

    def take(self, worker: Worker, request_id: str) -> Sequence[SlotReferences]:
        """References that the caller releases: the worker has left.  Its commits follow all the same."""
        with self._lock:
            reads = self._reads.get((worker.instance_id, request_id), _Reads())
            taken = [references for other, references in reads.held if other is worker]
            reads.held = [each for each in reads.held if each[0] is not worker]
            return taken

    def commit(self, instance_id: int, request_id: str) -> Sequence[SlotReferences]:
        """One reader has ended.  Returns references without a reader, which the caller releases."""
        with self._lock:
            reads = self._reads.get((instance_id, request_id), _Reads(2))
            reads.uncommitted -= 1
            if reads.uncommitted > 0:
                return ()
            del self._reads[instance_id, request_id]
            return [references for _, references in reads.held]

    def forget(self, worker: Worker) -> None:
        """The references of this registration have ended.  Commits that have not come still count."""
        with self._lock:
            for reads in self._reads.values():
                reads.held = [each for each in reads.held if each[0] is not worker]
