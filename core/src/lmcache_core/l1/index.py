"""The index of L1: key spaces by number, and which object is in which slot.

Within L1 an object is known by the number of its space and its chunk hash; together, as the identity that policies see, they
are a key of 36 bytes.

A slot is free, or being written (referenced by its writer), ready (in the index, referenced by any number of readers), or
leaving (no longer in the index, freed with its last reference).

Beside it are the logs: an access log for the eviction policy, and removals for subscribers and metrics.  The policy belongs
to the eviction controller's thread; the request path only appends one entry per batch to a list.
"""

from __future__ import annotations

import struct
import threading
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from lmcache_core.contracts.counts import Evicted
from lmcache_core.contracts.events import ObjectsRemoved, Publisher
from lmcache_core.contracts.policies import AccessFacts, InsertFacts, RequestFacts
from lmcache_core.contracts.residency import ChangeKind
from lmcache_core.kernels.choice import Kernels
from lmcache_core.l1.allocator import Allocator
from lmcache_core.l1.journal import JOURNAL_KEYS, Journal
from lmcache_core.model.keys import KeySpace
from lmcache_core.model.object_header import HEADER_BYTES

_NUMBER = struct.Struct("<I")
SPACES_KEPT = 65536
"""Beyond this many spaces, empty ones are forgotten."""
_SIGNAL_ENTRIES = 1024
LOG_ENTRIES_MAX = 100_000
"""Accesses are not logged beyond this many entries; a policy that far behind loses nothing that it could use."""
_ROUNDS = 2**32
EVICTED: Final = "evicted"
QUOTA: Final = "quota"
CLEARED: Final = "cleared"
PASSING: Final = "passing"
"""Reasons of removals, as in `contracts.events.ObjectsRemoved`."""
SALTS_MAX: Final = 1024
"""Salts whose evictions are counted by themselves; those of later salts are counted together."""
OTHER: Final = "_other"


@dataclass(slots=True)
class SpaceRecord:
    """One key space as L1 knows it."""

    space: KeySpace
    number: int
    prefix: bytes
    """The number, as keys begin with it."""
    payload_bytes: int
    objects: int = 0
    """Slots that hold or are being filled with objects of this space."""


class Spaces:
    """Interns key spaces.  Numbers are never used twice, so a forgotten space cannot be taken for another.  Not
    synchronised: the caller holds the cache's lock."""

    def __init__(self) -> None:
        self._by_tail: dict[bytes, SpaceRecord] = {}
        """By the bytes that name a space in keys: their hash is remembered, and no code of ours runs for it."""
        self._by_number: dict[int, SpaceRecord] = {}
        self._by_salt: dict[str, dict[int, SpaceRecord]] = {}
        self._next = 0
        self._left = 0
        """How many were left when empty ones were last forgotten."""

    def __len__(self) -> int:
        return len(self._by_tail)

    def find(self, space: KeySpace) -> SpaceRecord | None:
        return self._by_tail.get(space.tail)

    def intern(self, space: KeySpace, payload_bytes: int) -> SpaceRecord:
        record = self._by_tail.get(space.tail)
        if record is None:
            # Twice as many as were left: where most are not empty, few new spaces wait for a pass over all.
            if len(self._by_tail) >= max(SPACES_KEPT, 2 * self._left):
                self._forget_empty()
            record = SpaceRecord(space, self._next, _NUMBER.pack(self._next), payload_bytes)
            self._next += 1
            self._by_tail[space.tail] = record
            self._add(record)
        return record

    def adopt(self, record: SpaceRecord) -> None:
        """Objects are about to be placed in this space; it may have been forgotten since it was interned."""
        self._add(record)
        self._by_tail.setdefault(record.space.tail, record)

    def numbered(self, number: int) -> SpaceRecord:
        """The space of this number, which must not be empty."""
        return self._by_number[number]

    def everything(self) -> Iterable[SpaceRecord]:
        return self._by_number.values()

    def of_salt(self, salt: str) -> Iterable[SpaceRecord]:
        """The spaces of one salt, a few: one for each of its models, shards and layouts."""
        return self._by_salt.get(salt, {}).values()

    def _add(self, record: SpaceRecord) -> None:
        self._by_number[record.number] = record
        self._by_salt.setdefault(record.space.cache_salt, {})[record.number] = record

    def _forget_empty(self) -> None:
        for record in list(self._by_number.values()):
            if record.objects == 0:
                del self._by_number[record.number]
                spaces = self._by_salt[record.space.cache_salt]
                del spaces[record.number]
                if not spaces:
                    del self._by_salt[record.space.cache_salt]
                if self._by_tail.get(record.space.tail) is record:
                    del self._by_tail[record.space.tail]
        self._left = len(self._by_tail)


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


class RemovalLog:
    """Which objects were removed and why: evictions are always counted, single objects are recorded while a subscriber
    wants `ObjectsRemoved`."""

    def __init__(self) -> None:
        self.events: Publisher | None = None
        self.pending: list[tuple[str, KeySpace, list[bytes]]] = []
        """To be published: reason, space, and chunk hashes.  Reading whether there are any needs no lock."""
        self._evicted: dict[tuple[str, str], Evicted] = {}
        self._salts: set[str] = set()

    @property
    def wanted(self) -> bool:
        """Does a subscriber want single objects?"""
        return self.events is not None and self.events.wants(ObjectsRemoved)

    def record(self, reason: str, space: KeySpace, chunk_hashes: list[bytes]) -> None:
        """These are about to be removed from the index.  Only while they are `wanted`."""
        self.pending.append((reason, space, chunk_hashes))

    def publish(self, removals: Sequence[tuple[str, KeySpace, list[bytes]]]) -> None:
        """To the subscribers.  Without the lock."""
        if self.events is None:
            return
        for reason, space, hashes in removals:
            self.events.publish(
                ObjectsRemoved(space.model_name, space.cache_salt, space.kv_rank, reason, b"".join(hashes))
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


class SlotIndex:
    """Slots, keys and spaces of one arena, and the lock that guards them: taken once per batch, never held across I/O, a
    callback or a page allocation.  The caller holds `lock`, except where a method says otherwise."""

    def __init__(self, arena_bytes: int, align_bytes: int, kernels: Kernels, journal_keys: int = JOURNAL_KEYS) -> None:
        self.lock = threading.Lock()
        self.allocator = Allocator(arena_bytes // align_bytes * align_bytes)
        self.spaces = Spaces()
        self.table = kernels.slot_table()
        self.access_log = AccessLog()
        self.removal_log = RemovalLog()
        self.journal = Journal(journal_keys)
        """What becomes visible and what leaves, while a reader of the residency feed wants it."""
        self.sealed = bytearray()
        """By slot: 1 where the header page of the object in it is written, and must stay as it is."""
        self.evicted = 0
        """Objects that were evicted since the start."""
        self.request_eviction: Callable[[], None] = lambda: None
        """Wakes the eviction controller.  Called without the lock."""
        self.arena_bytes = arena_bytes
        self._align = align_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes of slots that are not free.  Needs no lock."""
        return self.allocator.carved_bytes - self.allocator.free_bytes

    @property
    def used_ratio(self) -> float:
        return self.used_bytes / self.arena_bytes

    def slot_bytes_for(self, payload_bytes: int) -> int:
        """Header page and payload, rounded up to the alignment."""
        return -(-(HEADER_BYTES + payload_bytes) // self._align) * self._align

    def record_of(self, slot: int) -> SpaceRecord:
        """The space of a slot in use."""
        return self.spaces.numbered(self.table.key(slot)[0])

    def insert_facts(self, slots: Sequence[int], first_chunk: int, request: RequestFacts) -> InsertFacts:
        """Of slots that hold objects of one space."""
        record = self.record_of(slots[0])
        keys = tuple(record.prefix + self.table.key(slot)[1] for slot in slots)
        return InsertFacts(self.allocator.slot_bytes(slots[0]), record.space, first_chunk, keys, request)

    def is_ready(self, slot: int) -> bool:
        """Is there an object in this slot that can be found?"""
        state = self.table.state(slot)
        return state is not None and state[3]

    def count_absent(self, record: SpaceRecord, chunk_hashes: Sequence[bytes]) -> int:
        """How many of these chunks are neither ready nor being written."""
        return len(self.table.absent(record.number, chunk_hashes))

    def grow(self) -> None:
        """Extend the arrays to the slots that carving and moves have added."""
        if grown := len(self.allocator) - len(self.table):
            self.table.grow(grown)
            self.access_log.grow(grown)
            self.sealed.extend(bytes(grown))

    @property
    def records_removals(self) -> bool:
        """Does anything want single objects that are removed?"""
        return self.journal.is_open or self.removal_log.wanted

    def record_visible(self, slots: Sequence[int]) -> None:
        """These objects of one space can be found from now on."""
        if slots and self.journal.is_open:
            record = self.record_of(slots[0])
            hashes = b"".join([self.table.key(slot)[1] for slot in slots])
            self.journal.record(ChangeKind.STORE, record.space, HEADER_BYTES + record.payload_bytes, hashes)

    def record_removal(self, slots: Sequence[int], reason: str) -> None:
        """These objects are about to be removed from the index."""
        if not slots or not self.records_removals:
            return
        by_space: dict[int, list[bytes]] = {}
        for space, name in map(self.table.key, slots):
            by_space.setdefault(space, []).append(name)
        for number, names in by_space.items():
            record = self.spaces.numbered(number)
            if self.removal_log.wanted:
                self.removal_log.record(reason, record.space, names)
            if self.journal.is_open:
                self.journal.record(
                    ChangeKind.DELETE, record.space, HEADER_BYTES + record.payload_bytes, b"".join(names)
                )

    def free(self, slots: list[int]) -> dict[int, int]:
        """Free slots in use and log that for the policy.  Returns the number of slots by space."""
        if not slots:
            return {}
        removed = self.table.remove(slots)
        for space, count in removed.items():
            self.spaces.numbered(space).objects -= count
        for slot in slots:
            self.allocator.free(slot)
            self.sealed[slot] = 0
        self.access_log.removed(slots)
        return removed

    def free_released(self, slots: list[int]) -> None:
        """The last references to these temporary or leaving objects have ended: free them."""
        if slots and self.records_removals:
            self.record_removal([slot for slot in slots if self.is_ready(slot)], PASSING)
        self.free(slots)

    def evict(self, slots: list[int], reason: str) -> None:
        """Remove objects without references, and count them as evicted."""
        self.record_removal(slots, reason)
        for number, count in self.free(slots).items():
            record = self.spaces.numbered(number)
            slot_bytes = self.slot_bytes_for(record.payload_bytes)
            self.removal_log.count_evicted(record.space.cache_salt, reason, count, count * slot_bytes)
        self.evicted += len(slots)

    def hide(self, slots: list[int]) -> None:
        """Remove ready objects from the index; each slot is freed with its last reference."""
        self.table.hide(slots)
        self.access_log.removed(slots)

    def publish_removals(self) -> None:
        """Without the lock: publish the removals that were recorded."""
        if self.removal_log.pending:
            with self.lock:
                removals, self.removal_log.pending = self.removal_log.pending, []
            self.removal_log.publish(removals)

    def signal_if_logged(self) -> None:
        """Without the lock: wake the eviction controller when it has many entries to read."""
        if len(self.access_log) >= _SIGNAL_ENTRIES:
            self.request_eviction()
