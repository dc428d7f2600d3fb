"""The index of L1: key spaces by number, and which object is in which slot.

Within L1 an object is known by the number of its space and its chunk hash; together, as the identity that policies see, they
are a key of 36 bytes.

A slot is free, or being written (referenced by its writer), ready (in the index, referenced by any number of readers), or
leaving (no longer in the index, freed with its last reference).
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from lmcache_core.contracts.policies import InsertFacts, RequestFacts
from lmcache_core.kernels.choice import Kernels
from lmcache_core.l1.allocator import Allocator
from lmcache_core.l1.logs import PASSING, AccessLog, RemovalLog
from lmcache_core.model.keys import KeySpace
from lmcache_core.model.object_header import HEADER_BYTES

_NUMBER = struct.Struct("<I")
SPACES_KEPT = 65536
"""Beyond this many spaces, empty ones are forgotten."""
_SIGNAL_ENTRIES = 1024
PAUSE_SECONDS = 0.0001
"""Between two slices of long work.  A lock that is taken again at once is never available to waiting threads: they wake up
too late each time."""


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


class SlotIndex:
    """Slots, keys and spaces of one arena, and the lock that guards them: taken once per batch, never held across I/O, a
    callback or a page allocation.  The caller holds `lock`, except where a method says otherwise."""

    def __init__(self, arena_bytes: int, align_bytes: int, kernels: Kernels) -> None:
        self.lock = threading.Lock()
        self.allocator = Allocator(arena_bytes // align_bytes * align_bytes)
        self.spaces = Spaces()
        self.table = kernels.slot_table()
        self.access_log = AccessLog()
        self.removal_log = RemovalLog()
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

    def record_removal(self, slots: Sequence[int], reason: str) -> None:
        """These objects are about to be removed from the index."""
        if slots and self.removal_log.wanted:
            keys = [self.table.key(slot) for slot in slots]
            self.removal_log.record(reason, [(self.spaces.numbered(space).space, name) for space, name in keys])

    def free(self, slots: list[int]) -> dict[int, int]:
        """Free slots in use and log that for the policy.  Returns the number of slots by space."""
        if not slots:
            return {}
        removed = self.table.remove(slots)
        for space, count in removed.items():
            self.spaces.numbered(space).objects -= count
        for slot in slots:
            self.allocator.free(slot)
        self.access_log.removed(slots)
        return removed

    def free_released(self, slots: list[int]) -> None:
        """The last references to these temporary or leaving objects have ended: free them."""
        if slots and self.removal_log.wanted:
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
