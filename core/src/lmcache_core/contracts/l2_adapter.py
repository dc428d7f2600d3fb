"""The contract of a second-tier storage backend, and what it is given when it is opened."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.completion import CompletionSource, JobId
from lmcache_core.contracts.conditions import ReportsConditions
from lmcache_core.contracts.events import Publisher
from lmcache_core.contracts.l1_memory import BorrowedBuffer, MemoryRegion
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.results import KeyPage, Outcome, Usage


@dataclass(frozen=True, slots=True)
class AdapterContext:
    """The server, as far as an L2 adapter may see it.  `name` is unique among the adapters of this server."""

    name: str
    instance_id: str
    """The server's stable identity (`--instance-id`)."""
    boot_id: str
    """New with every start of the server; names temporaries."""
    regions: tuple[MemoryRegion, ...]
    """L1's memory.  Every borrowed buffer lies in one of them."""
    align_bytes: int
    """Every borrowed buffer starts at a multiple of it."""
    clock: Clock
    events: Publisher
    logger: logging.Logger


class StoreItem(NamedTuple):
    """One object to keep: header page and payload in one contiguous, borrowed run."""

    key: ObjectKey
    buffer: BorrowedBuffer


class LoadItem(NamedTuple):
    """One object to bring back into a borrowed run of exactly its size."""

    key: ObjectKey
    buffer: BorrowedBuffer


class CircuitState(Enum):
    """OPEN: the backend is down and is not called.  HALF_OPEN: one call probes whether it is back."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class CircuitStatus(NamedTuple):
    """What an adapter with a circuit breaker has as `circuit`.  `retry_in_seconds` is None unless it is open."""

    state: CircuitState
    failures_in_a_row: int
    openings: int
    retry_in_seconds: float | None


class L2Adapter(ReportsConditions, ABC):
    """Moves whole objects between L1 memory and a backend.

    Every `submit_*` returns at once and is answered through `completions()`, with one outcome per key in the order
    given; a batch of no keys is answered like any other.  `submit_*` and `unpin` may be called from any thread.
    Buffers are borrowed until the job's release (see `completion.py`).  Most authors subclass `BlockingL2Adapter` or
    `AsyncL2Adapter` of lmcache-l2-adapter, which do all of this for them.
    """

    capabilities: Capability = Capability.NONE
    max_object_bytes: int | None = None
    """Longest object, header page included, that the backend takes; a longer one is REJECTED.  None: no limit."""

    @abstractmethod
    def submit_store(self, batch: Sequence[StoreItem]) -> JobId:
        """Keep these objects.  DONE when the backend has the object (also when it had it before)."""

    @abstractmethod
    def submit_lookup(self, keys: Sequence[ObjectKey]) -> JobId:
        """Which exist?  DONE or MISSING each.  Those found stay pinned, safe from deletion and eviction, until `unpin`."""

    @abstractmethod
    def submit_load(self, batch: Sequence[LoadItem]) -> JobId:
        """Read objects straight into the borrowed memory.  DONE only when every byte of the buffer was written."""

    @abstractmethod
    def unpin(self, keys: Sequence[ObjectKey]) -> None:
        """Undo one pin of each key.  Unknown keys are ignored."""

    @abstractmethod
    def submit_delete(self, keys: Sequence[ObjectKey]) -> JobId:
        """Remove objects.  DONE when it is gone, MISSING when it was not there, REJECTED while it is pinned."""

    @abstractmethod
    def reject(self, key: ObjectKey, outcome: Outcome) -> None:
        """What was loaded under `key` is DAMAGED (move it aside) or FOREIGN (leave it alone).  Do not offer it again.

        Called by core after its own check, and for what the adapter itself found so.  Must not block."""

    @abstractmethod
    def completions(self) -> CompletionSource:
        """The same object for the adapter's life."""

    @abstractmethod
    def usage(self) -> Usage | None:
        """What is stored now; None while the adapter does not know: where it declares USAGE, only until it has learned what
        was there when it was opened.  Must not block."""

    @abstractmethod
    def list_keys(self, cursor: str | None, limit: int) -> KeyPage:
        """Up to `limit` keys from `cursor` on (None: from the start).  May block; called off the request path, by several
        threads at once, and not once `close` was called.  A cursor may come from outside: refuse one that you never gave."""

    def delete_other_versions(self) -> int:
        """Remove our objects of format versions that this server cannot read (`Check.other_version`), which no listing names:
        part of deleting everything.  Returns how many.  Where others may use the backend, leave them alone.  May block; called
        as `list_keys` is."""
        return 0

    @abstractmethod
    def close(self, deadline_seconds: float) -> None:
        """Stop, finishing what is in flight if that takes no longer than the deadline.  Calling it again only waits, as long
        at most, for the end of that."""
