"""Leases: who holds which slots, and until when.

A lease is a batch of holds with an owner.  What its end and its deadline mean depends on whose it is: a lookup that no
worker has picked up can simply be dropped; a worker or an adapter may still be touching the bytes, so a deadline moves
its holds to quarantine, and only an answer, an unregistration or a known death ends them (object-format.md, "Buffers").

Not synchronised: the caller holds the cache's lock.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from math import ceil


class LeaseKind(Enum):
    READ = "read"
    WRITE = "write"


class LeaseState(Enum):
    ACTIVE = "active"
    QUARANTINED = "quarantined"
    """Past its deadline.  What it was for has failed; its slots stay untouchable until its owner lets go."""
    ENDED = "ended"


class OwnerKind(Enum):
    LOOKUP = "lookup"
    WORKER = "worker"
    CONTROLLER = "controller"
    PIN = "pin"


@dataclass(frozen=True, slots=True)
class Owner:
    """`identity` is (connection, request id) of a lookup, the instance id of a worker, the name of a controller or of a
    pin."""

    kind: OwnerKind
    identity: Hashable


@dataclass(slots=True, eq=False)
class Lease:
    """Holds on `slots`, one for each mention.  Changed only by the cache that granted it."""

    owner: Owner
    kind: LeaseKind
    slots: list[int]
    deadline: float | None
    state: LeaseState = LeaseState.ACTIVE
    uses: int = 0
    """How often this server itself is copying to or from the slots right now."""
    ends_with_use: bool = False
    """It was ended while in use, and ends when the last use does."""
    without_room: int = 0
    """Of a write lease: for how many of the chunks last asked for L1 had no room, ..."""
    beyond_quota: int = 0
    """... and how many the salt may not have."""
    due: int | None = None
    """The second in which its deadline is looked at; the lease table's."""


class LeaseTable:
    """Every lease that has not ended.  Deadlines are kept by the second, so that nothing here looks at all leases."""

    def __init__(self) -> None:
        self._of: dict[Owner, dict[int, Lease]] = {}
        self._due: dict[int, dict[int, Lease]] = {}
        """Active leases by the second in which they are looked at: that of their deadline, or an earlier one."""
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
        if lease.due is None or _second(deadline) < lease.due:
            self._unschedule(lease)
            self._schedule(lease)

    def quarantine(self, lease: Lease) -> None:
        """It is active no more, and has no deadline to be looked at."""
        lease.state = LeaseState.QUARANTINED
        self._unschedule(lease)
        self._quarantined[id(lease)] = lease

    def owned_by(self, owner: Owner) -> list[Lease]:
        return list(self._of.get(owner, {}).values())

    def overdue(self, now: float, limit: int) -> tuple[list[Lease], bool]:
        """Active leases whose deadline has passed, found within a second; of all leases that are due to be looked at, up
        to `limit`.  True: there are more to look at, once these have been dealt with."""
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
        """Owners that have leases, and theirs.  May be asked without the cache's lock."""
        return list(self._of.items())

    def quarantined(self) -> Iterable[Lease]:
        return self._quarantined.values()

    def everything(self) -> Iterable[Lease]:
        return (lease for leases in self._of.values() for lease in leases.values())

    def _schedule(self, lease: Lease) -> None:
        if lease.deadline is not None:
            lease.due = _second(lease.deadline)
            self._due.setdefault(lease.due, {})[id(lease)] = lease

    def _unschedule(self, lease: Lease) -> None:
        if lease.due is None:
            return
        leases = self._due[lease.due]
        del leases[id(lease)]
        if not leases:
            del self._due[lease.due]
        lease.due = None


def _second(deadline: float) -> int:
    return ceil(deadline)
