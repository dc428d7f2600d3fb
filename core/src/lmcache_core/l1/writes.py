"""Writing into the cache: slots are reserved, filled by their owner, and published or discarded, within what each salt may
use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from lmcache_core.contracts.policies import InsertFacts, RequestFacts
from lmcache_core.kernels.choice import Kernels
from lmcache_core.l1.arena import Arena
from lmcache_core.l1.holds import HoldVerbs
from lmcache_core.l1.index import SpaceRecord
from lmcache_core.l1.leases import Lease, LeaseKind, LeaseState, Owner
from lmcache_core.l1.room_waits import RoomWait
from lmcache_core.l1.salt_accounts import SaltAccounts, SaltExcess, SaltLimits
from lmcache_core.l1.salt_waits import SaltWait
from lmcache_core.model.keys import KeySpace
from lmcache_core.model.object_header import HEADER_BYTES

NO_REQUEST = RequestFacts()


class WriteVerbs(HoldVerbs):
    """The verbs of writers.  Every one is safe from any thread; `reserve` and `extend` may allocate pages."""

    def __init__(self, arena: Arena, align_bytes: int, kernels: Kernels) -> None:
        super().__init__(arena, align_bytes, kernels)
        self._align = align_bytes
        self._pressure_ratio = 1.0
        self._salts = SaltAccounts(self._spaces, self.slot_bytes_for)
        self._demand: Counter[int] = Counter()
        self.allocation_failures = 0
        self.store_waits = 0
        """Waits for room that stores began."""

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

    # --- writing

    def reserve(
        self, owner: Owner, record: SpaceRecord, chunk_hashes: Sequence[bytes], deadline: float | None
    ) -> tuple[Lease, list[int]]:
        """Slots to write those chunks into that nobody has or is writing: a write lease on them, and their indexes in
        `chunk_hashes`.  When room runs out, or what the salt may use, a prefix of them, and eviction is asked for the
        rest: beyond its limit a salt makes room out of its own."""
        lease = Lease(owner, LeaseKind.WRITE, [], deadline)
        with self._lock:
            self._leases.add(lease)
        return lease, self.extend(lease, record, chunk_hashes)

    def extend(
        self, lease: Lease, record: SpaceRecord, chunk_hashes: Sequence[bytes], ask_eviction: bool = True
    ) -> list[int]:
        """Slots for more chunks of the same space, as `reserve` gives them; none when the lease has ended.  Eviction is
        asked for what is missing unless that has been done for the same chunks before."""
        slot_bytes = self.slot_bytes_for(record.payload_bytes)
        with self._lock:
            wanted = self._without_slot(record, chunk_hashes)
        self._carve(slot_bytes, wanted)
        with self._lock:
            if lease.state is not LeaseState.ACTIVE:
                return []
            self._spaces.adopt(record)
            indexes = self._table.absent(record.number, chunk_hashes)
            allowed = self._salts.room(record.space.cache_salt, slot_bytes, len(indexes))
            if beyond := len(indexes) - allowed:
                if ask_eviction:
                    self._salts.refuse(record.space.cache_salt, slot_bytes, beyond)
                del indexes[allowed:]
            slots = self._slots.take(slot_bytes, len(indexes))
            self._grow()
            missing = len(indexes) - len(slots)
            lease.without_room, lease.beyond_quota = missing, beyond
            del indexes[len(slots) :]
            self._table.begin(record.number, [chunk_hashes[index] for index in indexes], slots)
            lease.slots += slots
            record.objects += len(slots)
            if missing and ask_eviction:
                self._demand[slot_bytes] += missing * slot_bytes
                self.allocation_failures += missing
        if missing or beyond or self.used_ratio > self._pressure_ratio:
            self._on_pressure()
        return indexes

    def wait_for_room(self, lease: Lease, record: SpaceRecord, chunk_hashes: Sequence[bytes]) -> RoomWait | None:
        """A wait for slots for those of these chunks that have none yet; None when none is missing, when the salt may
        not have so many at all, or when the lease has ended.  To be given back with `end_wait`."""
        slot_bytes = self.slot_bytes_for(record.payload_bytes)
        with self._lock:
            absent = self._absent(record, chunk_hashes) if lease.state is LeaseState.ACTIVE else 0
            if not absent:
                return None
            missing = self._salts.room(record.space.cache_salt, slot_bytes, absent)
            if not missing:
                salt_wait = self._salts.wait(record.space.cache_salt, slot_bytes, absent, len(lease.slots))
                self.store_waits += salt_wait is not None
                return salt_wait
            self.store_waits += 1
            wait = self._slots.waits.begin(slot_bytes, missing, self._slots.available(slot_bytes))
        self._on_pressure()  # from now on it looks again and again, for what can leave only later
        return wait

    @property
    def stores_waiting(self) -> int:
        """Stores that wait for room right now, in L1 or within their salt's limit."""
        with self._lock:
            return sum(map(len, self._slots.waits.by_size.values())) + len(self._salts.waits)

    @property
    def is_waited_for(self) -> bool:
        """Does a store wait for room, in L1 or within its salt's limit?"""
        return bool(self._slots.waits.by_size or self._salts.waits)

    def end_wait(self, wait: RoomWait) -> None:
        with self._lock:
            if isinstance(wait, SaltWait):
                self._salts.waits.end(wait)
            else:
                self._slots.waits.end(wait)

    def end_waits(self) -> None:
        """Wake everybody who waits for room; from now on nobody does."""
        with self._lock:
            self._slots.waits.finish()
            self._salts.waits.finish()

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
            self._table.publish(slots, len(live), temporary)
            for reader in live:
                reader.slots += slots
            if slots and not temporary:
                self._notes.inserted(list(slots), self._insert_facts(slots, first_chunk, request))
            elif not live:
                self._remove(list(slots))
            if not lease.slots:
                self._end(lease)
        self._signal_if_noted()
        if self._departures.untold:
            self._tell_departures()
        return True

    def discard(self, lease: Lease, slots: Sequence[int]) -> None:
        """Free some slots of a write lease, unpublished."""
        gone = set(slots)
        with self._lock:
            if lease.state is LeaseState.ENDED:
                return
            self._remove([slot for slot in lease.slots if slot in gone])
            lease.slots = [slot for slot in lease.slots if slot not in gone]
            if not lease.slots:
                self._end(lease)

    def count_absent(self, record: SpaceRecord, chunk_hashes: Sequence[bytes]) -> int:
        """How many of these chunks are neither there nor being written."""
        with self._lock:
            return self._absent(record, chunk_hashes)

    # --- what salts use

    def limit_salts(self, limits: SaltLimits, changed: Iterable[str]) -> None:
        """From now on; what `changed` salts have beyond their new limits leaves with the next round of eviction."""
        with self._lock:
            self._salts.limit(limits, changed)
        self._on_pressure()

    def used_by(self, salt: str) -> int:
        """Bytes of a salt's slots."""
        with self._lock:
            return self._salts.used(salt)

    def used_by_salt(self) -> dict[str, int]:
        """Bytes of the slots of every salt that has any."""
        return self._salts.used_by_salt()

    @property
    def salts_over(self) -> bool:
        """Is there a salt that may have more than its limit, or wants to?"""
        return self._salts.any_over

    def take_salt_excess(self) -> list[SaltExcess]:
        """For the eviction controller: who has more than its limit, or was refused something within it."""
        with self._lock:
            return self._salts.take_excess()

    def tell_salts(self) -> None:
        """Objects have left, or limits are others: wake the stores that waited at their salt's limit and fit now."""
        if self._salts.waits:
            with self._lock:
                self._salts.tell()

    # --- inside

    def _insert_facts(self, slots: Sequence[int], first_chunk: int, request: RequestFacts) -> InsertFacts:
        """All slots hold objects of one space."""
        record = self._record_of(slots[0])
        keys = tuple(record.prefix + self._table.key(slot)[1] for slot in slots)
        return InsertFacts(self._slots.slot_bytes(slots[0]), record.space, first_chunk, keys, request)

    def _without_slot(self, record: SpaceRecord, chunk_hashes: Sequence[bytes]) -> int:
        """Under the lock: how many of these chunks could have a slot and have none."""
        slot_bytes = self.slot_bytes_for(record.payload_bytes)
        return self._salts.room(record.space.cache_salt, slot_bytes, self._absent(record, chunk_hashes))

    def _absent(self, record: SpaceRecord, chunk_hashes: Sequence[bytes]) -> int:
        """Under the lock: how many of these chunks have no slot."""
        return len(self._table.absent(record.number, chunk_hashes))

    def _carve(self, slot_bytes: int, wanted: int) -> None:
        """Without the lock."""
        while True:
            with self._lock:
                missing = wanted - self._slots.available(slot_bytes)
                extent = self._slots.claim_extent(slot_bytes) if missing > 0 else None
            if extent is None:
                return
            backed = self._arena.back(extent.offset, extent.length)
            with self._lock:
                if not backed:
                    self._slots.return_extent(extent)
                    return
                self._slots.add_slab(slot_bytes, extent)
