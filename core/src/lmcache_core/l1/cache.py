"""The memory cache: objects in slots, two-phase writes, counted reads, leases.

One lock, taken once per batch, never held across I/O, a callback or a page allocation.  A slot is free, or it is being
written (held by its writer), ready (in the index, held by any number of readers or by none), or leaving (out of the
index, freed with its last hold).

    free + cached + held + quarantined == total          cached: ready and held by nobody
"""

from __future__ import annotations

import threading
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from lmcache_core.contracts.buffers import LentBuffer
from lmcache_core.contracts.policies import AccessFacts, InsertFacts, RequestFacts
from lmcache_core.l1.arena import Arena
from lmcache_core.l1.index import SpaceRecord, Spaces
from lmcache_core.l1.leases import Lease, LeaseKind, LeaseState, LeaseTable, Owner, OwnerKind
from lmcache_core.l1.notes import Note, Notes
from lmcache_core.l1.slots import Slots
from lmcache_core.model.keys import KeySpace, ObjectKey
from lmcache_core.model.object_header import HEADER_BYTES

_WRITING = 1
_LEAVING = 2
_TEMPORARY = 4
_CLEAR_SLICE = 4096
_SIGNAL_NOTES = 1024
NO_REQUEST = RequestFacts()


@dataclass(frozen=True, slots=True)
class Census:
    """Slots by state.  `used_bytes` is everything that is not free."""

    total: int
    free: int
    cached: int
    held: int
    quarantined: int
    leases: int
    used_bytes: int
    capacity_bytes: int

    @property
    def holds(self) -> bool:
        return self.free + self.cached + self.held + self.quarantined == self.total


class L1Cache:
    """Objects by key, in the slots of one arena.  Every method is safe from any thread and none blocks on I/O, but
    `reserve` may allocate pages."""

    def __init__(self, arena: Arena, align_bytes: int) -> None:
        self._arena = arena
        self._align = align_bytes
        self._on_pressure: Callable[[], None] = lambda: None
        self._pressure_ratio = 1.0
        self._lock = threading.Lock()
        self._slots = Slots(arena.size_bytes // align_bytes * align_bytes)
        self._spaces = Spaces()
        self._index: dict[bytes, int] = {}
        self._writing: dict[bytes, int] = {}
        self._keys: list[bytes | None] = []
        self._holds = array("I")
        self._flags = bytearray()
        self._held = 0
        self._cached = 0
        self._leases = LeaseTable()
        self._notes = Notes()
        self._demand: Counter[int] = Counter()
        self.evicted = 0
        self.allocation_failures = 0

    def call_on_pressure(self, function: Callable[[], None], ratio: float) -> None:
        """`function` is called, without the lock, when a reservation passes `ratio` of the arena or finds no room, and
        when the policy has much to be told."""
        self._on_pressure = function
        self._pressure_ratio = ratio

    # --- key spaces

    def intern(self, space: KeySpace, payload_bytes: int) -> SpaceRecord:
        with self._lock:
            return self._spaces.intern(space, payload_bytes)

    def slot_bytes_for(self, payload_bytes: int) -> int:
        """Header page and payload, rounded up to the alignment."""
        return -(-(HEADER_BYTES + payload_bytes) // self._align) * self._align

    # --- leases

    def open(self, owner: Owner, deadline: float | None) -> Lease:
        """An empty read lease, to acquire into."""
        lease = Lease(owner, LeaseKind.READ, [], deadline)
        with self._lock:
            self._leases.add(lease)
        return lease

    def acquire(self, lease: Lease, keys: Sequence[bytes]) -> list[int]:
        """Hold every key that is ready; -1 for the others, and for all when the lease has ended."""
        with self._lock:
            if lease.state is not LeaseState.ACTIVE:
                return [-1] * len(keys)
            find = self._index.get
            slots = [find(key, -1) for key in keys]
            found = [slot for slot in slots if slot >= 0]
            self._hold(lease, found)
        return slots

    def acquire_all(self, lease: Lease, keys: Sequence[bytes]) -> list[int] | None:
        """Hold all of them, or none."""
        with self._lock:
            find = self._index.get
            slots = [find(key, -1) for key in keys]
            if lease.state is not LeaseState.ACTIVE or -1 in slots:
                return None
            self._hold(lease, slots)
        return slots

    def object_sizes(self, held: Lease, slots: Iterable[int]) -> dict[int, list[int]]:
        """The slots among these that `held` holds, by the length of the object: header page and payload."""
        found: dict[int, list[int]] = {}
        with self._lock:
            there = set(held.slots)
            for slot in slots:
                if slot in there:
                    size = HEADER_BYTES + self._spaces.of(self._key(slot)).payload_bytes
                    found.setdefault(size, []).append(slot)
        return found

    def share(self, lease: Lease, held: Lease, slots: Sequence[int]) -> list[int]:
        """Hold by `lease`, too, what `held` still holds of these.  Returns the slots that this is so for."""
        with self._lock:
            if LeaseState.ENDED in (lease.state, held.state):
                return []
            there = set(held.slots)
            shared = [slot for slot in slots if slot in there]
            self._hold(lease, shared)
        return shared

    def note_access(self, slots: list[int], facts: AccessFacts) -> None:
        """Tell the eviction policy that a request hit these, which it holds."""
        if not slots:
            return
        with self._lock:
            self._notes.accessed(slots, facts)
        self._signal_if_noted()

    def release(self, lease: Lease, slots: Iterable[int]) -> None:
        """Let go of some of a read lease's slots.  Slots that it does not hold are ignored."""
        gone = set(slots)
        with self._lock:
            let_go = [slot for slot in lease.slots if slot in gone]
            if lease.state is LeaseState.ENDED or not let_go:
                return
            lease.slots = [slot for slot in lease.slots if slot not in gone]
            self._unhold(let_go)

    def renew(self, lease: Lease, deadline: float) -> None:
        with self._lock:
            if lease.state is LeaseState.ACTIVE:
                lease.deadline = deadline

    def end(self, lease: Lease) -> None:
        """Let go of everything the lease holds; what it was writing is discarded.  Ending it again does nothing."""
        with self._lock:
            self._end(lease)

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

    def end_all(self, owner: Owner) -> int:
        """End every lease of an owner that is done or known dead.  Returns how many slots it held."""
        with self._lock:
            leases = self._leases.owned_by(owner)
            held = sum(len(lease.slots) for lease in leases)
            for lease in leases:
                self._end(lease)
        return held

    def quarantine(self, lease: Lease) -> None:
        """What the lease was for has failed, but its owner may still touch the bytes: keep them apart until it ends."""
        with self._lock:
            self._quarantine(lease)

    def expire(self, now: float) -> tuple[int, int]:
        """Apply deadlines.  Returns (slots let go, slots put into quarantine)."""
        dropped = quarantined = 0
        with self._lock:
            for lease in self._leases.overdue(now):
                if lease.owner.kind is OwnerKind.LOOKUP:
                    dropped += len(lease.slots)
                    self._end(lease)
                else:
                    quarantined += len(lease.slots)
                    self._quarantine(lease)
        return dropped, quarantined

    # --- writing

    def reserve(
        self, owner: Owner, record: SpaceRecord, chunk_hashes: Sequence[bytes], deadline: float | None
    ) -> tuple[Lease, list[int]]:
        """Slots to write those chunks into that nobody has or is writing: a write lease on them, and their indexes in
        `chunk_hashes`.  When room runs out, a prefix of them, and eviction is asked for the rest."""
        slot_bytes = self.slot_bytes_for(record.payload_bytes)
        keys = [record.prefix + chunk_hash for chunk_hash in chunk_hashes]
        with self._lock:
            absent = sum(key not in self._index and key not in self._writing for key in keys)
        self._carve(slot_bytes, absent)
        lease = Lease(owner, LeaseKind.WRITE, [], deadline)
        with self._lock:
            self._spaces.adopt(record)
            indexes = [i for i, key in enumerate(keys) if key not in self._index and key not in self._writing]
            lease.slots = self._slots.take(slot_bytes, len(indexes))
            missing = len(indexes) - len(lease.slots)
            del indexes[len(lease.slots) :]
            for index, slot in zip(indexes, lease.slots, strict=True):
                self._keys[slot] = keys[index]
                self._writing[keys[index]] = slot
                self._flags[slot] = _WRITING
                self._holds[slot] = 1
            record.objects += len(lease.slots)
            self._held += len(lease.slots)
            if missing:
                self._demand[slot_bytes] += missing * slot_bytes
                self.allocation_failures += missing
            self._leases.add(lease)
        if missing or self.used_ratio > self._pressure_ratio:
            self._on_pressure()
        return lease, indexes

    def publish(
        self,
        lease: Lease,
        slots: Sequence[int],
        readers: Sequence[Lease] = (),
        first_chunk: int = 0,
        temporary: bool = False,
        request: RequestFacts = NO_REQUEST,
    ) -> bool:
        """Make written slots of a write lease visible, held by each of `readers` from the start.  False, and they are
        not, when the lease is no longer active.  Temporary objects leave with their last reader."""
        with self._lock:
            if lease.state is not LeaseState.ACTIVE:
                return False
            published = set(slots)
            lease.slots = [slot for slot in lease.slots if slot not in published]
            live = [reader for reader in readers if reader.state is LeaseState.ACTIVE]
            for slot in slots:
                key = self._keys[slot]
                assert key is not None
                del self._writing[key]
                self._index[key] = slot
                self._flags[slot] = _TEMPORARY if temporary else 0
                self._holds[slot] = len(live)
            for reader in live:
                reader.slots.extend(slots)
            if not live:
                self._held -= len(slots)
                self._settle(slots)
            if slots and not temporary:
                record = self._spaces.of(self._key(slots[0]))
                keys = tuple(map(self._key, slots))
                facts = InsertFacts(self._slots.slot_bytes(slots[0]), record.space, first_chunk, keys, request)
                self._notes.inserted(list(slots), facts)
            if not lease.slots:
                self._end(lease)
        self._signal_if_noted()
        return True

    def discard(self, lease: Lease, slots: Sequence[int]) -> None:
        """Free some slots of a write lease, unpublished."""
        gone = set(slots)
        with self._lock:
            if lease.state is LeaseState.ENDED:
                return
            self._free_written([slot for slot in lease.slots if slot in gone])
            lease.slots = [slot for slot in lease.slots if slot not in gone]
            if not lease.slots:
                self._end(lease)

    # --- making room

    def take_notes(self) -> tuple[list[Note], Counter[int]]:
        """For the eviction controller: what its policy has to be told, and who waits for room."""
        with self._lock:
            demand, self._demand = self._demand, Counter()
            return self._notes.take(), demand

    def may_evict(self, slot: int) -> bool:
        """Is it cached and held by nobody, as far as can be seen without the lock?"""
        known = 0 <= slot < len(self._keys)
        return known and self._holds[slot] == 0 and self._flags[slot] == 0 and self._keys[slot] is not None

    def evict(self, slots: Sequence[int]) -> tuple[int, int]:
        """Free those that are cached, held by nobody and still what the policy thinks they are.  Returns how many that
        were, and their bytes."""
        with self._lock:
            candidates = dict.fromkeys(slots)  # a policy may name one twice
            victims = [slot for slot in candidates if self.may_evict(slot) and not self._notes.is_news(slot)]
            freed = sum(self._slots.slot_bytes(slot) for slot in victims)
            self._drop(victims)
            self.evicted += len(victims)
        return len(victims), freed

    def empty_a_slab(self, slot_bytes: int) -> int:
        """Make room for a size that has none at all, out of neighbouring slabs of other sizes that nobody holds anything
        in.  Returns how many objects had to leave."""
        with self._lock:
            if self._slots.available(slot_bytes):
                return 0
            for window in self._slots.neighbours(slot_bytes):
                candidates = [slot for slots in window for slot in slots]
                if any(self._holds[slot] or self._flags[slot] for slot in candidates):
                    continue
                victims = [slot for slot in candidates if self._keys[slot] is not None]
                self._drop(victims)
                self.evicted += len(victims)
                return len(victims)
        return 0

    def clear(self, force: bool) -> int:
        """Drop every object that nobody holds; with `force` the held ones too, which then leave with their last hold.
        Objects that are being written are not touched.  Returns how many left the index."""
        with self._lock:
            snapshot = list(self._index.items())
        dropped = 0
        for begin in range(0, len(snapshot), _CLEAR_SLICE):
            with self._lock:
                there = [slot for key, slot in snapshot[begin : begin + _CLEAR_SLICE] if self._index.get(key) == slot]
                idle = [slot for slot in there if not self._holds[slot]]
                self._drop(idle)
                busy = [slot for slot in there if self._holds[slot]] if force else []
                for slot in busy:
                    del self._index[self._key(slot)]
                    self._flags[slot] = _LEAVING
                self._notes.removed(busy)
                dropped += len(idle) + len(busy)
        return dropped

    def drop_when_released(self, slots: Sequence[int]) -> None:
        """These objects leave L1 with their last hold (buffer-only operation)."""
        with self._lock:
            for slot in slots:
                if self._flags[slot] == 0 and self._keys[slot] is not None:
                    self._flags[slot] = _TEMPORARY
            self._settle_idle(slots)

    # --- looking

    def buffer(self, slot: int) -> LentBuffer:
        """Header page and payload of a held slot, exactly as long as the object."""
        record = self._spaces.of(self._key(slot))
        return LentBuffer(self._arena.region, self._slots.offset(slot), HEADER_BYTES + record.payload_bytes)

    def payload_offset(self, slot: int) -> int:
        """Where the payload of a held slot starts in the arena."""
        return self._slots.offset(slot) + HEADER_BYTES

    def key_of(self, slot: int) -> ObjectKey:
        """The identity of what a held slot holds."""
        key = self._key(slot)
        return ObjectKey(self._spaces.of(key).space, key[4:])

    def contains(self, key: bytes) -> bool:
        return key in self._index

    def available(self, payload_bytes: int) -> int:
        """Slots that are free for objects of this size, without carving more."""
        return self._slots.available(self.slot_bytes_for(payload_bytes))

    @property
    def used_ratio(self) -> float:
        return (self._slots.carved_bytes - self._slots.free_bytes) / self._arena.size_bytes

    @property
    def objects(self) -> int:
        return len(self._index)

    def census(self) -> Census:
        with self._lock:
            waiting = Counter(slot for lease in self._leases.quarantined() for slot in lease.slots)
            quarantined = sum(count >= self._holds[slot] for slot, count in waiting.items())
            return Census(
                total=self._slots.total,
                free=self._slots.free_slots,
                cached=self._cached,
                held=self._held - quarantined,
                quarantined=quarantined,
                leases=len(self._leases),
                used_bytes=self._slots.carved_bytes - self._slots.free_bytes,
                capacity_bytes=self._arena.size_bytes,
            )

    def audit(self) -> None:
        """Assert that counters, index and slots agree, slot by slot.  For tests; it holds the lock throughout."""
        with self._lock:
            used = [slot for slot, key in enumerate(self._keys) if key is not None]
            ready = set(self._index.values())
            holds = Counter(slot for lease in self._leases.everything() for slot in lease.slots)
            assert len(ready) == len(self._index), "two keys share a slot"
            assert all(self._index.get(self._key(slot)) == slot for slot in ready)
            assert self._held == sum(self._holds[slot] > 0 for slot in used)
            assert self._cached == sum(self._holds[slot] == 0 for slot in used)
            assert all(holds[slot] == self._holds[slot] for slot in used), "a hold that no lease accounts for"
            assert set(holds) <= set(used), "a lease on a free slot"
            assert self._slots.free_slots + len(used) == self._slots.total
            assert sum(record.objects for record in self._spaces.everything()) == len(used)

    # --- under the lock

    def _key(self, slot: int) -> bytes:
        key = self._keys[slot]
        assert key is not None, f"slot {slot} is free"
        return key

    def _hold(self, lease: Lease, slots: list[int]) -> None:
        for slot in slots:
            if not self._holds[slot]:
                self._held += 1
                self._cached -= 1
            self._holds[slot] += 1
        if slots:
            lease.slots.extend(slots)

    def _unhold(self, slots: Iterable[int]) -> None:
        idle = []
        for slot in slots:
            self._holds[slot] -= 1
            if not self._holds[slot]:
                idle.append(slot)
        self._held -= len(idle)
        self._settle(idle)

    def _settle(self, idle: Sequence[int]) -> None:
        """Slots whose last hold has just gone: cached, or out if they were temporary or leaving."""
        self._cached += len(idle)
        self._settle_idle(idle)

    def _settle_idle(self, slots: Sequence[int]) -> None:
        self._drop([slot for slot in slots if not self._holds[slot] and self._flags[slot] & (_TEMPORARY | _LEAVING)])

    def _drop(self, slots: list[int]) -> None:
        """Free cached slots and tell the policy."""
        for slot in slots:
            if not self._flags[slot] & _LEAVING:
                del self._index[self._key(slot)]
            self._free(slot)
        self._cached -= len(slots)
        self._notes.removed(slots)

    def _free_written(self, slots: list[int]) -> None:
        for slot in slots:
            if self._flags[slot] == _WRITING:
                del self._writing[self._key(slot)]
            self._holds[slot] = 0
            self._free(slot)
        self._held -= len(slots)
        self._notes.removed(slots)

    def _free(self, slot: int) -> None:
        self._spaces.of(self._key(slot)).objects -= 1
        self._keys[slot] = None
        self._flags[slot] = 0
        self._slots.give(slot)

    def _quarantine(self, lease: Lease) -> None:
        if lease.state is not LeaseState.ACTIVE:
            return
        lease.state = LeaseState.QUARANTINED
        if lease.kind is LeaseKind.WRITE:
            for slot in lease.slots:
                # Others may store these chunks now; this slot is freed, unread, when its writer lets go.
                del self._writing[self._key(slot)]
                self._flags[slot] = _LEAVING

    def _end(self, lease: Lease) -> None:
        if lease.state is LeaseState.ENDED:
            return
        if lease.uses:
            self._quarantine(lease)
            lease.ends_with_use = True
            return
        if lease.kind is LeaseKind.WRITE:
            self._free_written(lease.slots)
        else:
            self._unhold(lease.slots)
        lease.state = LeaseState.ENDED
        lease.slots = []
        self._leases.discard(lease)

    # --- without the lock

    def _carve(self, slot_bytes: int, wanted: int) -> None:
        while True:
            with self._lock:
                missing = wanted - self._slots.available(slot_bytes)
                extent = self._slots.claim_extent(slot_bytes, missing) if missing > 0 else None
            if extent is None:
                return
            backed = self._arena.back(extent.offset, extent.length)
            with self._lock:
                if not backed:
                    self._slots.return_extent(extent)
                    return
                self._slots.add_slab(slot_bytes, extent)
                grown = len(self._slots) - len(self._keys)
                self._keys.extend([None] * grown)
                self._holds.extend(bytes(grown))
                self._flags.extend(bytes(grown))

    def _signal_if_noted(self) -> None:
        if len(self._notes) >= _SIGNAL_NOTES:
            self._on_pressure()
