"""What L1 contains: slot state counts, and objects as operators list, drop and clear them.

free + cached + held + quarantined == total          cached: ready and not referenced
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from lmcache_core.contracts.cache_control import CachedObject, SlotUse
from lmcache_core.contracts.counts import SlotCounts
from lmcache_core.contracts.policies import InsertFacts, RequestFacts
from lmcache_core.l1.index import CLEARED, SlotIndex, SpaceRecord
from lmcache_core.l1.journal import PAUSE_SECONDS
from lmcache_core.l1.leases import Leases
from lmcache_core.model.keys import KeySpace, ObjectKey

_CLEAR_SLICE = 1024


class Dropped(NamedTuple):
    """The result of dropping objects."""

    dropped: int
    """Removed from the index."""
    held: int
    """Kept, because they are referenced."""
    leaving: Sequence[int]
    """Slots of removed objects that are freed with their last reference."""


class Contents:
    """Every method is safe from any thread.  `clear` takes a slice of slots at a time under the lock; the caller of `views`
    and `drop` does the same."""

    def __init__(self, index: SlotIndex, leases: Leases) -> None:
        self._index = index
        self._table = index.table
        self._leases = leases

    @property
    def slot_numbers(self) -> int:
        return len(self._table)

    def contains(self, record: SpaceRecord, chunk_hash: bytes) -> bool:
        """Is it in the index?  Takes no lock, so that the answer may already be out of date."""
        return self._table.contains(record.number, chunk_hash)

    def views(self, begin: int, end: int) -> list[CachedObject]:
        """The slots in use with numbers from `begin` to below `end`.  One step under the lock."""
        with self._index.lock:
            views = map(self._view, range(begin, min(end, len(self._table))))
            return [view for view in views if view is not None]

    def insert_facts(self, slots: Sequence[int], request: RequestFacts) -> list[tuple[int, InsertFacts]]:
        """For an eviction policy that takes over: those of these slots whose object stays until it is evicted, each as if
        this request had just inserted it, alone.  Their positions in prompts are no longer known."""
        found = []
        with self._index.lock:
            for slot in slots:
                state = self._table.state(slot)
                if state is not None and state[3] and not state[4]:
                    found.append((slot, self._index.insert_facts([slot], 0, request)))
        return found

    def lost(self, slots: Sequence[int]) -> list[int]:
        """Those of these referenced slots whose object is not in the index."""
        with self._index.lock:
            return [slot for slot in slots if not self._index.is_ready(slot)]

    def clear(self, force: bool) -> int:
        """Drop every unreferenced object; with `force` the referenced ones, too, which are freed with their last reference.
        Objects that are being written stay.  Returns how many were removed from the index."""
        dropped = 0
        for begin in range(0, len(self._table), _CLEAR_SLICE):
            with self._index.lock:
                idle, busy = self._table.ready(begin, begin + _CLEAR_SLICE)
                self._drop(idle, busy if force else [])
                dropped += len(idle) + len(busy) * force
            self._index.publish_removals()
            time.sleep(PAUSE_SECONDS)
        return dropped

    def drop(self, space: KeySpace, chunk_hashes: Sequence[bytes], force: bool) -> Dropped:
        """Drop those of these objects that are not referenced; with `force` the referenced ones, too, which are freed with
        their last reference.  One step under the lock."""
        table = self._table
        with self._index.lock:
            record = self._index.spaces.find(space)
            if record is None:
                return Dropped(0, 0, ())
            # Referenced for a moment, because that is how the table finds: one reference now means none before.
            found = [slot for slot in table.acquire(record.number, list(dict.fromkeys(chunk_hashes))) if slot >= 0]
            idle = [slot for slot in found if table.holds(slot) == 1]
            busy = [slot for slot in found if table.holds(slot) > 1]
            table.release(busy)
            self._drop(idle, busy if force else [])
        self._index.publish_removals()
        return Dropped(len(idle) + len(busy), 0, busy) if force else Dropped(len(idle), len(busy), ())

    def drop_referenced(self, slots: Sequence[int]) -> list[int]:
        """Remove the objects in these slots from the index; each slot is freed with its last reference.  Returns the slots
        whose objects were in the index until now."""
        with self._index.lock:
            found = [slot for slot in slots if self._index.is_ready(slot)]
            self._drop([], found)
        self._index.publish_removals()
        return found

    def state_counts(self) -> SlotCounts:
        """One consistent count of all slots."""
        table, allocator = self._table, self._index.allocator
        with self._index.lock:
            waiting = Counter(slot for lease in self._leases.table.quarantined() for slot in lease.slots)
            quarantined = sum(count >= table.holds(slot) for slot, count in waiting.items())
            return SlotCounts(
                total=allocator.total,
                free=allocator.free_slots,
                cached=table.cached,
                held=table.held - quarantined,
                quarantined=quarantined,
                leases=len(self._leases.table),
                used_bytes=self._index.used_bytes,
                capacity_bytes=self._index.arena_bytes,
            )

    def _drop(self, idle: list[int], busy: list[int]) -> None:
        """Under the lock: free the unreferenced ones, and the referenced ones with their last reference."""
        self._index.record_removal(idle + busy, CLEARED)
        self._index.free(idle)
        self._index.hide(busy)

    def _view(self, slot: int) -> CachedObject | None:
        """Under the lock."""
        if (state := self._table.state(slot)) is None:
            return None
        number, chunk_hash, references, ready, _ = state
        record = self._index.spaces.numbered(number)
        object_state: SlotUse = "held" if references else "cached"
        if not ready:
            is_absent = self._table.contains(number, chunk_hash) or self._table.absent(number, (chunk_hash,))
            object_state = "leaving" if is_absent else "writing"
        key = ObjectKey(record.space, chunk_hash)
        return CachedObject(slot, key, object_state, record.payload_bytes, self._index.allocator.slot_bytes(slot))
