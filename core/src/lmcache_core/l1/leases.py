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


@dataclass(frozen=True, slots=True)
class Owner:
    """`identity` is (connection, request id) of a lookup, the instance id of a worker, the name of a controller."""

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


class LeaseTable:
    """Every lease that has not ended."""

    def __init__(self) -> None:
        self._of: dict[Owner, dict[int, Lease]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, lease: Lease) -> None:
        self._of.setdefault(lease.owner, {})[id(lease)] = lease
        self._count += 1

    def discard(self, lease: Lease) -> None:
        leases = self._of.get(lease.owner)
        if leases is None or leases.pop(id(lease), None) is None:
            return
        self._count -= 1
        if not leases:
            del self._of[lease.owner]

    def owned_by(self, owner: Owner) -> list[Lease]:
        return list(self._of.get(owner, {}).values())

    def overdue(self, now: float) -> list[Lease]:
        """Active leases whose deadline has passed."""
        return [
            lease
            for lease in self.everything()
            if lease.state is LeaseState.ACTIVE and lease.deadline is not None and lease.deadline <= now
        ]

    def quarantined(self) -> list[Lease]:
        return [lease for lease in self.everything() if lease.state is LeaseState.QUARANTINED]

    def everything(self) -> Iterable[Lease]:
        return (lease for leases in self._of.values() for lease in leases.values())
