"""What the cache records for others: an access log for the eviction policy, and removals for subscribers and metrics.

The policy belongs to the eviction controller's thread.  The request path only appends one entry per batch to a list.
Not synchronised: the caller holds the cache's lock, except where a method says otherwise.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from lmcache_core.contracts.events import ObjectsLeft, Publisher
from lmcache_core.contracts.policies import AccessFacts, InsertFacts
from lmcache_core.model.keys import KeySpace

LOG_ENTRIES_MAX = 100_000
"""Accesses are not logged beyond this many entries; a policy that far behind loses nothing that it could use."""
_ROUNDS = 2**32
EVICTED: Final = "evicted"
QUOTA: Final = "quota"
CLEARED: Final = "cleared"
PASSING: Final = "passing"
"""Reasons of removals, as in `contracts.events.ObjectsLeft`."""
SALTS_MAX: Final = 1024
"""Salts whose evictions are counted by themselves; those of later salts are counted together."""
OTHER: Final = "_other"


class Inserted(msgspec.Struct, frozen=True):
    slots: list[int]
    facts: InsertFacts


class Accessed(msgspec.Struct, frozen=True):
    slots: list[int]
    facts: AccessFacts


class Removed(msgspec.Struct, frozen=True):
    slots: list[int]


LogEntry = Inserted | Accessed | Removed


class AccessLog:
    """Insertions, accesses and removals, until the eviction controller takes them."""

    def __init__(self) -> None:
        self._entries: list[LogEntry] = []
        self._round = 1
        self._removed_in = array("I")
        """By slot: the round in which it was last emptied.  A round ends when the entries are taken."""

    def __len__(self) -> int:
        """Entries.  Needs no lock."""
        return len(self._entries)

    def grow(self, count: int) -> None:
        """There are `count` more slots."""
        self._removed_in.frombytes(bytes(count * self._removed_in.itemsize))

    def inserted(self, slots: list[int], facts: InsertFacts) -> None:
        self._entries.append(Inserted(slots, facts))

    def accessed(self, slots: list[int], facts: AccessFacts) -> None:
        if len(self._entries) < LOG_ENTRIES_MAX:
            self._entries.append(Accessed(slots, facts))

    def removed(self, slots: list[int]) -> None:
        if not slots:
            return
        self._entries.append(Removed(slots))
        removed_in, this = self._removed_in, self._round
        for slot in slots:
            removed_in[slot] = this

    def unchanged(self, slots: Sequence[int]) -> list[int]:
        """Those of these slots that were not emptied since the entries were last taken.  About the others the policy speaks
        of an object that is gone, even if the slot holds another one by now."""
        removed_in, this = self._removed_in, self._round
        return [slot for slot in slots if removed_in[slot] != this]

    def take(self) -> list[LogEntry]:
        taken, self._entries = self._entries, []
        self._round = (self._round + 1) % _ROUNDS
        return taken


class Evicted(NamedTuple):
    """Since the start."""

    objects: int
    slot_bytes: int


class RemovalLog:
    """Which objects were removed and why: evictions are always counted, single objects are recorded while a subscriber
    wants `ObjectsLeft`."""

    def __init__(self) -> None:
        self.events: Publisher | None = None
        self.pending: list[tuple[str, KeySpace, list[bytes]]] = []
        """To be published: reason, space, and chunk hashes.  Reading whether there are any needs no lock."""
        self._evicted: dict[tuple[str, str], Evicted] = {}
        self._salts: set[str] = set()

    @property
    def wanted(self) -> bool:
        """Does a subscriber want single objects?"""
        return self.events is not None and self.events.wants(ObjectsLeft)

    def record(self, reason: str, objects: Sequence[tuple[KeySpace, bytes]]) -> None:
        """These are about to be removed from the index.  Only while they are `wanted`."""
        hashes: dict[KeySpace, list[bytes]] = {}
        for space, chunk_hash in objects:
            hashes.setdefault(space, []).append(chunk_hash)
        self.pending += [(reason, space, of_space) for space, of_space in hashes.items()]

    def publish(self, removals: Sequence[tuple[str, KeySpace, list[bytes]]]) -> None:
        """To the subscribers.  Without the lock."""
        if self.events is None:
            return
        for reason, space, hashes in removals:
            self.events.publish(
                ObjectsLeft(space.model_name, space.cache_salt, space.kv_rank, reason, b"".join(hashes))
            )

    def count_evicted(self, salt: str, reason: str, objects: int, slot_bytes: int) -> None:
        if salt not in self._salts:
            if len(self._salts) >= SALTS_MAX:
                salt = OTHER
            else:
                self._salts.add(salt)
        before = self._evicted.get((salt, reason), Evicted(0, 0))
        self._evicted[salt, reason] = Evicted(before.objects + objects, before.slot_bytes + slot_bytes)

    def evicted(self) -> dict[tuple[str, str], Evicted]:
        """By cache salt and reason: `evicted` or `quota`."""
        return dict(self._evicted)
