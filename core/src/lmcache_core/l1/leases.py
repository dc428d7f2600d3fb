"""Leases: which owner references which slots, and until when.

A lease is a batch of references with an owner.  The effect of its end and of its deadline depends on the owner: a lookup
that no worker has picked up, or a peer's, can simply be dropped; a worker or an adapter may still be touching the bytes,
so a deadline moves its slots to quarantine, and only an answer, an unregistration or a known death ends them
(object-format.md, "Buffers").
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Iterator, MutableSequence, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from math import ceil

import msgspec

from lmcache_core.l1.index import SlotIndex, SpaceRecord
from lmcache_core.l1.journal import PAUSE_SECONDS
from lmcache_core.model.object_header import HEADER_BYTES

_LEASES_PER_SLICE = 256
"""Leases whose deadlines are applied under one acquisition of the lock."""


class LeaseKind(Enum):
    READ = "read"
    WRITE = "write"


class LeaseState(Enum):
    ACTIVE = "active"
    QUARANTINED = "quarantined"
    """Past its deadline.  What it was for has failed; its slots stay untouched until its owner releases them."""
    ENDED = "ended"


class OwnerKind(Enum):
    LOOKUP = "lookup"
    WORKER = "worker"
    CONTROLLER = "controller"
    PIN = "pin"
    PEER = "peer"
    """Another server, which reads over a network.  It checks what it reads, so that nothing is kept for one that is late."""


class Owner(msgspec.Struct, frozen=True):
    """`identity` is (connection, request id) of a lookup, the instance id of a worker, the name of a controller, of a pin or
    of a peer."""

    kind: OwnerKind
    identity: Hashable


@dataclass(slots=True, eq=False)
class Lease:
    """References to `slots`, one for each mention.  Only the cache changes it."""

    owner: Owner
    kind: LeaseKind
    slots: MutableSequence[int]
    deadline: float | None
    state: LeaseState = LeaseState.ACTIVE
    uses: int = 0
    """Copies by this server to or from the slots right now."""
    ends_with_use: bool = False
    """It was ended while in use, and ends when the last use does."""
    unallocated: int = 0
    """Of a write lease: for how many of the chunks last requested L1 had no free slot, ..."""
    beyond_quota: int = 0
    """... and how many are beyond the salt's limit."""
    due: int | None = None
    """The second in which its deadline is checked; set by the lease table."""


class LeaseTable:
    """Every lease that has not ended.  Deadlines are kept by the second, so that no method walks all leases.  Not
    synchronised: the caller holds the cache's lock."""

    def __init__(self) -> None:
        self._of: dict[Owner, dict[int, Lease]] = {}
        self._due: dict[int, dict[int, Lease]] = {}
        """Active leases by the second in which they are checked: that of their deadline, or an earlier one."""
        self._quarantined: dict[int, Lease] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, lease: Lease) -> None:
        self._of.setdefault(lease.owner, {})[id(lease)] = lease
        self._count += 1
        self._schedule(lease)

    def discard(self, lease: Lease) -> None:
        leases = self._of.get(lease.owner)
        if leases is None or leases.pop(id(lease), None) is None:
            return
        self._count -= 1
        if not leases:
            del self._of[lease.owner]
        self._unschedule(lease)
        self._quarantined.pop(id(lease), None)

    def renew(self, lease: Lease, deadline: float) -> None:
        """An active lease has another deadline."""
        lease.deadline = deadline
        if lease.due is None or ceil(deadline) < lease.due:
            self._unschedule(lease)
            self._schedule(lease)

    def quarantine(self, lease: Lease) -> None:
        """It is no longer active, and its deadline no longer applies."""
        lease.state = LeaseState.QUARANTINED
        self._unschedule(lease)
        self._quarantined[id(lease)] = lease

    def owned_by(self, owner: Owner) -> list[Lease]:
        return list(self._of.get(owner, {}).values())

    def overdue(self, now: float, limit: int) -> tuple[list[Lease], bool]:
        """Active leases whose deadline has passed, found within a second; up to `limit` leases are checked.  True: there are
        more to check, once these have been handled."""
        late: list[Lease] = []
        looked = 0
        for second in sorted(second for second in self._due if second <= now):
            for lease in list(islice(self._due[second].values(), limit - looked)):
                looked += 1
                self._unschedule(lease)
                if lease.deadline is not None and lease.deadline <= now:
                    late.append(lease)
                else:
                    self._schedule(lease)
            if looked >= limit:
                return late, True
        return late, False

    def by_owner(self) -> list[tuple[Owner, dict[int, Lease]]]:
        """Owners that have leases, and their leases.  Needs no lock."""
        return list(self._of.items())

    def quarantined(self) -> Iterable[Lease]:
        return self._quarantined.values()

    def _schedule(self, lease: Lease) -> None:
        if lease.deadline is not None:
            lease.due = ceil(lease.deadline)
            self._due.setdefault(lease.due, {})[id(lease)] = lease

    def _unschedule(self, lease: Lease) -> None:
        if lease.due is None:
            return
        leases = self._due[lease.due]
        del leases[id(lease)]
        if not leases:
            del self._due[lease.due]
        lease.due = None


class Leases:
    """References to slots: opened, added, released, renewed and ended.  Every method is safe from any thread, and none
    blocks."""

    def __init__(self, index: SlotIndex) -> None:
        self._index = index
        self._lock = index.lock
        self.table = LeaseTable()

    def count_by_owner(self) -> dict[str, int]:
        """Number of leases by the kind of their owner.  Takes no lock."""
        counts = dict.fromkeys([kind.value for kind in OwnerKind], 0)
        for owner, leases in self.table.by_owner():
            counts[owner.kind.value] += len(leases)
        return counts

    def open(self, owner: Owner, deadline: float | None) -> Lease:
        """An empty read lease, to acquire into."""
        lease = Lease(owner, LeaseKind.READ, [], deadline)
        with self._lock:
            self.table.add(lease)
        return lease

    def acquire(self, lease: Lease, record: SpaceRecord, chunk_hashes: Sequence[bytes]) -> list[int]:
        """Reference every chunk of this space that is ready.  Returns slots; -1 for the others, and for all when the lease is
        not active."""
        with self._lock:
            if lease.state is not LeaseState.ACTIVE:
                return [-1] * len(chunk_hashes)
            slots = self._index.table.acquire(record.number, chunk_hashes)
            lease.slots += [slot for slot in slots if slot >= 0] if -1 in slots else slots
        return slots

    def acquire_all(self, lease: Lease, record: SpaceRecord, chunk_hashes: Sequence[bytes]) -> list[int] | None:
        """Reference all of these chunks, or none: None where one is not ready."""
        with self._lock:
            if lease.state is not LeaseState.ACTIVE:
                return None
            slots = self._index.table.acquire_all(record.number, chunk_hashes)
            if slots is not None:
                lease.slots += slots
        return slots

    def object_sizes(self, lease: Lease, slots: Iterable[int]) -> dict[int, list[int]]:
        """The slots among these that `lease` references, by the bytes of the object: header page and payload."""
        found: dict[int, list[int]] = {}
        with self._lock:
            referenced = set(lease.slots)
            for slot in slots:
                if slot in referenced:
                    found.setdefault(HEADER_BYTES + self._index.record_of(slot).payload_bytes, []).append(slot)
        return found

    def share(self, lease: Lease, source: Lease, slots: Sequence[int]) -> list[int]:
        """Add references by `lease` to those of these slots that `source` still references.  Returns these slots."""
        with self._lock:
            if LeaseState.ENDED in (lease.state, source.state):
                return []
            referenced = set(source.slots)
            shared = [slot for slot in slots if slot in referenced]
            self._index.table.hold(shared)
            lease.slots += shared
        return shared

    def release(self, lease: Lease, slots: Sequence[int]) -> None:
        """Release all references of a read lease to these slots.  Slots that it does not reference are ignored."""
        with self._lock:
            if lease.state is not LeaseState.ENDED and slots:
                lease.slots, leaving = self._index.table.release_from(lease.slots, slots)
                self._index.free_released(leaving)
        self._index.publish_removals()

    def renew(self, lease: Lease, deadline: float) -> None:
        with self._lock:
            if lease.state is LeaseState.ACTIVE:
                self.table.renew(lease, deadline)

    def end(self, lease: Lease) -> None:
        """Release everything; what was being written is discarded.  Ending a lease again does nothing."""
        with self._lock:
            self.end_locked(lease)
        self._index.publish_removals()

    @contextmanager
    def using(self, lease: Lease) -> Iterator[bool]:
        """While this server itself copies to or from the lease's slots: an end in the meantime, because a worker left or was
        reaped, takes effect afterwards.  Yields False when the lease is not active: do not touch the slots."""
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
                        self.end_locked(lease)
                self._index.publish_removals()

    def end_all(self, owner: Owner) -> int:
        """End every lease of an owner that is done or known dead.  Returns how many slots they referenced."""
        released = 0
        for lease in self._of(owner):  # one at a time: an owner may reference a large part of L1
            with self._lock:
                released += len(lease.slots)
                self.end_locked(lease)
        self._index.publish_removals()
        return released

    def quarantine_all(self, owner: Owner, ends_reads: bool) -> int:
        """Quarantine the leases of an owner that may still touch their slots; with `ends_reads`, end its read leases.
        Returns how many slots are in quarantine now."""
        kept = 0
        for lease in self._of(owner):  # one at a time: an owner may reference a large part of L1
            with self._lock:
                if ends_reads and lease.kind is LeaseKind.READ:
                    self.end_locked(lease)
                else:
                    self._quarantine(lease)
                    kept += len(lease.slots)
        self._index.publish_removals()
        return kept

    def quarantine(self, lease: Lease) -> None:
        """The lease's work has failed, but its owner may still touch the bytes: keep them untouched until it ends."""
        with self._lock:
            self._quarantine(lease)

    def expire(self, now: float) -> tuple[int, int]:
        """Apply deadlines, at most a second late.  Returns (slots released, slots put into quarantine)."""
        released = quarantined = 0
        more = True
        while more:
            if released or quarantined:
                time.sleep(PAUSE_SECONDS)
            with self._lock:
                late, more = self.table.overdue(now, _LEASES_PER_SLICE)
                for lease in late:
                    if lease.owner.kind in (OwnerKind.LOOKUP, OwnerKind.PEER):
                        released += len(lease.slots)
                        self.end_locked(lease)
                    else:
                        quarantined += len(lease.slots)
                        self._quarantine(lease)
        self._index.publish_removals()
        return released, quarantined

    def end_locked(self, lease: Lease) -> None:
        """As `end`; the caller holds the cache's lock."""
        if lease.state is LeaseState.ENDED:
            return
        if lease.uses:
            self._quarantine(lease)
            lease.ends_with_use = True
            return
        slots, lease.slots = lease.slots, []
        lease.state = LeaseState.ENDED
        self.table.discard(lease)
        if lease.kind is LeaseKind.WRITE:
            self._index.free(list(slots))
        else:
            self._index.free_released(self._index.table.release(slots))

    def _of(self, owner: Owner) -> list[Lease]:
        with self._lock:
            return self.table.owned_by(owner)

    def _quarantine(self, lease: Lease) -> None:
        if lease.state is not LeaseState.ACTIVE:
            return
        self.table.quarantine(lease)
        if lease.kind is LeaseKind.WRITE:
            # Others may store these chunks now; this slot is freed, unread, when its writer releases it.
            self._index.table.hide(lease.slots)
