"""What the memory cache knows, and the steps that its verbs are made of.  Not synchronised.

A slot is free, or it is being written (held by its writer), ready (found by its key, held by any number of readers or by
none), or leaving (found no more, freed with its last hold).
"""

from __future__ import annotations

from collections import Counter

from lmcache_core.kernels.choice import Kernels
from lmcache_core.l1.arena import Arena
from lmcache_core.l1.census import Census
from lmcache_core.l1.departures import PASSING, Departures
from lmcache_core.l1.index import SpaceRecord, Spaces
from lmcache_core.l1.leases import Lease, LeaseKind, LeaseState, LeaseTable
from lmcache_core.l1.notes import Notes
from lmcache_core.l1.slots import Slots


class CacheBooks:
    """Slots, keys, holds and leases of one arena.  The caller holds the cache's lock."""

    def __init__(self, arena: Arena, align_bytes: int, kernels: Kernels) -> None:
        self._arena = arena
        self._slots = Slots(arena.size_bytes // align_bytes * align_bytes)
        self._spaces = Spaces()
        self._table = kernels.slot_table()
        self._leases = LeaseTable()
        self._notes = Notes()
        self._departures = Departures()

    @property
    def used_bytes(self) -> int:
        """Bytes of slots that are not free."""
        return self._slots.carved_bytes - self._slots.free_bytes

    @property
    def used_ratio(self) -> float:
        return self.used_bytes / self._arena.size_bytes

    def _grow(self) -> None:
        """Slots come up in `_carve` and by moves; what is known of them has to be there before they are used."""
        if grown := len(self._slots) - len(self._table):
            self._table.grow(grown)
            self._notes.grow(grown)

    def _record_of(self, slot: int) -> SpaceRecord:
        return self._spaces.numbered(self._table.key(slot)[0])

    def _depart(self, slots: list[int], reason: str) -> None:
        """Objects are about to be found no more."""
        if slots and self._departures.wanted:
            keys = [self._table.key(slot) for slot in slots]
            self._departures.note(reason, [(self._spaces.numbered(space).space, name) for space, name in keys])

    def _pass(self, slots: list[int]) -> None:
        """The last holds on these have ended, and they have to leave: passing objects, and those that had left for
        everybody else before."""
        if slots and self._departures.wanted:
            self._depart([slot for slot in slots if (state := self._table.state(slot)) and state[3]], PASSING)
        self._remove(slots)

    def _remove(self, slots: list[int]) -> dict[int, int]:
        """Free slots in use and tell the policy.  Returns how many there were of each space."""
        if not slots:
            return {}
        removed = self._table.remove(slots)
        for space, count in removed.items():
            self._spaces.numbered(space).objects -= count
        for slot in slots:
            self._slots.give(slot)
        self._notes.removed(slots)
        return removed

    def _quarantine(self, lease: Lease) -> None:
        if lease.state is not LeaseState.ACTIVE:
            return
        self._leases.quarantine(lease)
        if lease.kind is LeaseKind.WRITE:
            # Others may store these chunks now; this slot is freed, unread, when its writer lets go.
            self._table.hide(lease.slots)

    def _end(self, lease: Lease) -> None:
        if lease.state is LeaseState.ENDED:
            return
        if lease.uses:
            self._quarantine(lease)
            lease.ends_with_use = True
            return
        slots, lease.slots = lease.slots, []
        lease.state = LeaseState.ENDED
        self._leases.discard(lease)
        if lease.kind is LeaseKind.WRITE:
            self._remove(slots)
        else:
            self._pass(self._table.release(slots))

    def _census(self) -> Census:
        table = self._table
        waiting = Counter(slot for lease in self._leases.quarantined() for slot in lease.slots)
        quarantined = sum(count >= table.holds(slot) for slot, count in waiting.items())
        return Census(
            total=self._slots.total,
            free=self._slots.free_slots,
            cached=table.cached,
            held=table.held - quarantined,
            quarantined=quarantined,
            leases=len(self._leases),
            used_bytes=self.used_bytes,
            capacity_bytes=self._arena.size_bytes,
        )

    def _audit(self) -> None:
        """Assert that counters, keys, slots and leases agree, slot by slot."""
        table = self._table
        states = [(slot, *state) for slot in range(len(table)) if (state := table.state(slot)) is not None]
        leased = Counter(slot for lease in self._leases.everything() for slot in lease.slots)
        keys = [(space, chunk_hash) for _, space, chunk_hash, _, ready, _ in states if ready]
        assert len(set(keys)) == len(keys), "two slots have one key"
        assert all(table.contains(*key) for key in keys), "an object that is not found"
        assert all(leased[slot] == holds for slot, _, _, holds, _, _ in states), "a hold that no lease accounts for"
        assert table.held == sum(holds > 0 for _, _, _, holds, _, _ in states)
        assert table.cached == sum(holds == 0 for _, _, _, holds, _, _ in states)
        assert table.findable == len(keys)
        assert leased.keys() <= {slot for slot, *_ in states}, "a lease on a free slot"
        assert self._slots.free_slots + len(states) == self._slots.total
        assert sum(record.objects for record in self._spaces.everything()) == len(states)
