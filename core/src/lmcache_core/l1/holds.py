"""Holds on cached objects: leases are opened, acquire and release, are renewed, and end.

One lock, taken once per batch, never held across I/O, a callback or a page allocation.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from lmcache_core.contracts.events import Publisher
from lmcache_core.contracts.policies import AccessFacts
from lmcache_core.kernels.choice import Kernels
from lmcache_core.l1.arena import Arena
from lmcache_core.l1.books import CacheBooks
from lmcache_core.l1.index import SpaceRecord
from lmcache_core.l1.leases import Lease, LeaseKind, LeaseState, Owner, OwnerKind
from lmcache_core.model.object_header import HEADER_BYTES

_SIGNAL_NOTES = 1024
PAUSE_SECONDS = 0.0001
"""Between two slices of long work.  A lock that is taken again at once is never had by who waits for it: they wake up too
late each time."""
_LEASES_PER_SLICE = 256
"""Leases that are looked at under one lock acquisition when deadlines are applied."""


class HoldVerbs(CacheBooks):
    """The verbs of readers.  Every one is safe from any thread, and none blocks."""

    def __init__(self, arena: Arena, align_bytes: int, kernels: Kernels) -> None:
        super().__init__(arena, align_bytes, kernels)
        self._lock = threading.Lock()
        self._on_pressure: Callable[[], None] = lambda: None

    def tell_departures_to(self, events: Publisher) -> None:
        """Where somebody wants `ObjectsLeft`, objects that leave are told of."""
        self._departures.tell_to(events)

    def leases_by_owner(self) -> dict[str, int]:
        """How many leases there are, by the kind of their owner.  Without the lock."""
        counts = dict.fromkeys([kind.value for kind in OwnerKind], 0)
        for owner, leases in self._leases.by_owner():
            counts[owner.kind.value] += len(leases)
        return counts

    def open(self, owner: Owner, deadline: float | None) -> Lease:
        """An empty read lease, to acquire into."""
        lease = Lease(owner, LeaseKind.READ, [], deadline)
        with self._lock:
            self._leases.add(lease)
        return lease

    def acquire(self, lease: Lease, record: SpaceRecord, chunk_hashes: Sequence[bytes]) -> list[int]:
        """Hold every chunk of this space that is ready; -1 for the others, and for all when the lease has ended."""
        with self._lock:
            if lease.state is not LeaseState.ACTIVE:
                return [-1] * len(chunk_hashes)
            slots = self._table.acquire(record.number, chunk_hashes)
            lease.slots += [slot for slot in slots if slot >= 0] if -1 in slots else slots
        return slots

    def acquire_all(self, lease: Lease, record: SpaceRecord, chunk_hashes: Sequence[bytes]) -> list[int] | None:
        """Hold all of them, or none."""
        with self._lock:
            if lease.state is not LeaseState.ACTIVE:
                return None
            slots = self._table.acquire_all(record.number, chunk_hashes)
            if slots is not None:
                lease.slots += slots
        return slots

    def object_sizes(self, held: Lease, slots: Iterable[int]) -> dict[int, list[int]]:
        """The slots among these that `held` holds, by the length of the object: header page and payload."""
        found: dict[int, list[int]] = {}
        with self._lock:
            there = set(held.slots)
            for slot in slots:
                if slot in there:
                    found.setdefault(HEADER_BYTES + self._record_of(slot).payload_bytes, []).append(slot)
        return found

    def share(self, lease: Lease, held: Lease, slots: Sequence[int]) -> list[int]:
        """Hold by `lease`, too, what `held` still holds of these.  Returns the slots that this is so for."""
        with self._lock:
            if LeaseState.ENDED in (lease.state, held.state):
                return []
            there = set(held.slots)
            shared = [slot for slot in slots if slot in there]
            self._table.hold(shared)
            lease.slots += shared
        return shared

    def note_access(self, slots: list[int], facts: AccessFacts) -> None:
        """Tell the eviction policy that a request hit these, which it holds.  The list is the cache's from now on."""
        if not slots:
            return
        with self._lock:
            self._notes.accessed(slots, facts)
        self._signal_if_noted()

    def release(self, lease: Lease, slots: Sequence[int]) -> None:
        """Let go of some of a read lease's slots, of every hold that it has on them.  Slots that it does not hold are
        ignored."""
        with self._lock:
            if lease.state is not LeaseState.ENDED and slots:
                lease.slots, leaving = self._table.release_from(lease.slots, slots)
                self._pass(leaving)
        if self._departures.untold:
            self._tell_departures()

    def renew(self, lease: Lease, deadline: float) -> None:
        with self._lock:
            if lease.state is LeaseState.ACTIVE:
                self._leases.renew(lease, deadline)

    def end(self, lease: Lease) -> None:
        """Let go of everything the lease holds; what it was writing is discarded.  Ending it again does nothing."""
        with self._lock:
            self._end(lease)
        if self._departures.untold:
            self._tell_departures()

    @contextmanager
    def using(self, lease: Lease) -> Iterator[bool]:
        """While this server itself copies to or from the lease's slots: an end that comes meanwhile, because a worker
        left or was reaped, takes effect afterwards.  Yields False when the lease is not active: do not touch the slots."""
        with self._lock:
            alive = lease.state is LeaseState.ACTIVE
            lease.uses += alive
        try:
            yield alive
        finally:
            if alive:
                with self._lock:
                    lease.uses -= 1
                    if lease.ends_with_use and not lease.uses:
                        self._end(lease)
                self._tell_departures()

    def end_all(self, owner: Owner) -> int:
        """End every lease of an owner that is done or known dead.  Returns how many slots it held."""
        with self._lock:
            leases = self._leases.owned_by(owner)
        held = 0
        for lease in leases:  # one at a time: an owner may hold a large part of L1
            with self._lock:
                held += len(lease.slots)
                self._end(lease)
        self._tell_departures()
        return held

    def quarantine_all(self, owner: Owner, ends_reads: bool) -> int:
        """Put the leases of an owner that may still touch their slots into quarantine; with `ends_reads`, end those that it
        reads by.  Returns how many slots are in quarantine now."""
        with self._lock:
            leases = self._leases.owned_by(owner)
        kept = 0
        for lease in leases:  # one at a time: an owner may hold a large part of L1
            with self._lock:
                if ends_reads and lease.kind is LeaseKind.READ:
                    self._end(lease)
                else:
                    self._quarantine(lease)
                    kept += len(lease.slots)
        self._tell_departures()
        return kept

    def quarantine(self, lease: Lease) -> None:
        """What the lease was for has failed, but its owner may still touch the bytes: keep them apart until it ends."""
        with self._lock:
            self._quarantine(lease)

    def expire(self, now: float) -> tuple[int, int]:
        """Apply deadlines, at most a second late.  Returns (slots let go, slots put into quarantine)."""
        dropped = quarantined = 0
        more = True
        while more:
            if dropped or quarantined:
                time.sleep(PAUSE_SECONDS)
            with self._lock:
                late, more = self._leases.overdue(now, _LEASES_PER_SLICE)
                for lease in late:
                    if lease.owner.kind is OwnerKind.LOOKUP:
                        dropped += len(lease.slots)
                        self._end(lease)
                    else:
                        quarantined += len(lease.slots)
                        self._quarantine(lease)
        self._tell_departures()
        return dropped, quarantined

    def _tell_departures(self) -> None:
        """Without the lock."""
        if self._departures.untold:
            with self._lock:
                tell = self._departures.take()
            tell()

    def _signal_if_noted(self) -> None:
        """Without the lock."""
        if len(self._notes) >= _SIGNAL_NOTES:
            self._on_pressure()
