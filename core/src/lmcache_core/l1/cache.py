"""The memory cache: objects in slots, two-phase writes, counted references, leases.

L1Cache      write, publish, evict, borrow buffers
 |- leases     references of lookups, workers and controllers: read, renew, quarantine, expire
 |- salts      what each cache salt uses and may use
 |- slabs      slabs move between slot sizes
 |- contents   slot state counts; list, drop and clear for operators
 '- (index)    keys and slots, the allocator, the logs, and the one lock
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from lmcache_core.contracts.counts import Evicted
from lmcache_core.contracts.events import Publisher
from lmcache_core.contracts.l1_memory import BorrowedBuffer
from lmcache_core.contracts.policies import AccessFacts, RequestFacts
from lmcache_core.kernels.choice import PURE, Kernels
from lmcache_core.l1.allocator import AllocationWait
from lmcache_core.l1.arena import Arena
from lmcache_core.l1.contents import Contents
from lmcache_core.l1.index import EVICTED, LogEntry, SlotIndex, SpaceRecord
from lmcache_core.l1.journal import JOURNAL_KEYS, L1Feed
from lmcache_core.l1.leases import Lease, LeaseKind, Leases, LeaseState, Owner
from lmcache_core.l1.read_checks import ReadChecks
from lmcache_core.l1.salts import SaltAccounts
from lmcache_core.l1.slab_moves import SlabMoves
from lmcache_core.model.keys import KeySpace, ObjectKey
from lmcache_core.model.object_header import HEADER_BYTES, seal

NO_REQUEST = RequestFacts()


class L1Cache:
    """Objects by key, in the slots of one arena.  Every method is safe from any thread and none blocks on I/O, but
    `reserve` and `extend` may allocate pages."""

    def __init__(
        self, arena: Arena, align_bytes: int, kernels: Kernels = PURE, journal_keys: int = JOURNAL_KEYS
    ) -> None:
        """`journal_keys`: whose last changes the feed keeps."""
        self._arena = arena
        self._index = SlotIndex(arena.size_bytes, align_bytes, kernels, journal_keys)
        self._allocator = self._index.allocator
        self._table = self._index.table
        self.slot_bytes_for = self._index.slot_bytes_for
        """Bytes of the slot that an object with this payload gets."""
        self.slot_bytes = self._allocator.slot_bytes
        """Bytes of the arena that a referenced slot takes."""
        self.may_evict: Callable[[int], bool] = self._table.may_evict
        """Is a slot cached and unreferenced, as far as can be seen without the lock?"""
        self.leases = Leases(self._index)
        self.salts = SaltAccounts(self._index)
        self.slabs = SlabMoves(self._index)
        self.contents = Contents(self._index, self.leases)
        self.feed = L1Feed(self._index)
        self.checks: ReadChecks | None = None
        """A publisher records the digests of its slots first, and slots are compared before a reader gets them.  None:
        bytes in L1 are not checked.  Set before anything runs."""
        self._sealing = threading.Lock()
        self._pressure_ratio = 1.0
        self._demand: Counter[int] = Counter()
        self.allocation_failures = 0
        """Slots that reservations requested and did not get."""
        self.store_waits = 0
        """Waits for free space that stores began."""

    def call_on_pressure(self, function: Callable[[], None], ratio: float) -> None:
        """Call `function`, without the lock, when a reservation passes `ratio` of the arena or finds no free space, and when
        the access log is long."""
        self._index.request_eviction = function
        self._pressure_ratio = ratio

    # --- writing

    def intern(self, space: KeySpace, payload_bytes: int) -> SpaceRecord:
        """The record of a key space, whose objects have `payload_bytes`."""
        with self._index.lock:
            return self._index.spaces.intern(space, payload_bytes)

    def reserve(
        self, owner: Owner, record: SpaceRecord, chunk_hashes: Sequence[bytes], deadline: float | None
    ) -> tuple[Lease, list[int]]:
        """Slots for those of these chunks that are neither ready nor being written: a write lease on them, and their indexes
        in `chunk_hashes`.  Where free space or the salt's limit is short, a prefix of them, and eviction is requested for
        the rest: beyond its limit, of the salt's own objects."""
        lease = Lease(owner, LeaseKind.WRITE, [], deadline)
        with self._index.lock:
            self.leases.table.add(lease)
        return lease, self.extend(lease, record, chunk_hashes)

    def extend(
        self, lease: Lease, record: SpaceRecord, chunk_hashes: Sequence[bytes], ask_eviction: bool = True
    ) -> list[int]:
        """Slots for more chunks of the same space, as in `reserve`; none when the lease has ended.  `ask_eviction` is False
        when eviction has been requested for the same chunks before."""
        slot_bytes = self.slot_bytes_for(record.payload_bytes)
        salt = record.space.cache_salt
        with self._index.lock:
            absent = self._index.count_absent(record, chunk_hashes)
            wanted = self.salts.allowed_locked(salt, slot_bytes, absent)
        self._carve(slot_bytes, wanted)
        with self._index.lock:
            if lease.state is not LeaseState.ACTIVE:
                return []
            self._index.spaces.adopt(record)
            indexes = self._table.absent(record.number, chunk_hashes)
            allowed = self.salts.allowed_locked(salt, slot_bytes, len(indexes))
            if beyond := len(indexes) - allowed:
                if ask_eviction:
                    self.salts.refuse_locked(salt, slot_bytes, beyond)
                del indexes[allowed:]
            slots = self._allocator.allocate(slot_bytes, len(indexes))
            self._index.grow()
            missing = len(indexes) - len(slots)
            lease.unallocated, lease.beyond_quota = missing, beyond
            del indexes[len(slots) :]
            self._table.begin(record.number, [chunk_hashes[index] for index in indexes], slots)
            lease.slots += slots
            record.objects += len(slots)
            if missing and ask_eviction:
                self._demand[slot_bytes] += missing * slot_bytes
                self.allocation_failures += missing
        if missing or beyond or self._index.used_ratio > self._pressure_ratio:
            self._index.request_eviction()
        return indexes

    def publish(
        self,
        lease: Lease,
        slots: Sequence[int],
        readers: Sequence[Lease] = (),
        first_chunk: int = 0,
        temporary: bool = False,
        request: RequestFacts = NO_REQUEST,
    ) -> bool:
        """Make written slots of a write lease visible, referenced by each of `readers` from the start.  False, and they are
        not, when the lease is no longer active.  Temporary objects are freed with their last reference."""
        with self._index.lock:
            if lease.state is not LeaseState.ACTIVE:
                return False
            published = set(slots)
            lease.slots = [slot for slot in lease.slots if slot not in published]
            live = [reader for reader in readers if reader.state is LeaseState.ACTIVE]
            self._table.publish(slots, len(live), temporary)
            for reader in live:
                reader.slots += slots
            if live or not temporary:
                self._index.record_visible(slots)
            if slots and not temporary:
                self._index.access_log.inserted(list(slots), self._index.insert_facts(slots, first_chunk, request))
            elif not live:
                self._index.free(list(slots))
            if not lease.slots:
                self.leases.end_locked(lease)
        self._index.signal_if_logged()
        self._index.publish_removals()
        return True

    def discard(self, lease: Lease, slots: Sequence[int]) -> None:
        """Free some slots of a write lease, unpublished."""
        discarded = set(slots)
        with self._index.lock:
            if lease.state is LeaseState.ENDED:
                return
            self._index.free([slot for slot in lease.slots if slot in discarded])
            lease.slots = [slot for slot in lease.slots if slot not in discarded]
            if not lease.slots:
                self.leases.end_locked(lease)

    def drop_when_released(self, slots: Sequence[int]) -> None:
        """Free these objects with their last reference (buffer-only operation)."""
        with self._index.lock:
            self._index.free_released(self._table.mark_temporary(slots))
        self._index.publish_removals()

    def count_absent(self, record: SpaceRecord, chunk_hashes: Sequence[bytes]) -> int:
        with self._index.lock:
            return self._index.count_absent(record, chunk_hashes)

    def acquire_known(self, lease: Lease, space: KeySpace, chunk_hashes: Sequence[bytes]) -> list[int]:
        """As `Leases.acquire`, of a space whose object size the caller does not know."""
        with self._index.lock:
            record = self._index.spaces.find(space)
        return [-1] * len(chunk_hashes) if record is None else self.leases.acquire(lease, record, chunk_hashes)

    # --- waiting for free space

    def wait_for_space(self, lease: Lease, record: SpaceRecord, chunk_hashes: Sequence[bytes]) -> AllocationWait | None:
        """A wait for slots for those of these chunks that have none yet; None when none is missing, when they are more than
        the salt's whole limit, or when the lease has ended.  The caller ends it with `end_wait`."""
        slot_bytes = self.slot_bytes_for(record.payload_bytes)
        salt = record.space.cache_salt
        with self._index.lock:
            if lease.state is not LeaseState.ACTIVE:
                return None
            if not (absent := self._index.count_absent(record, chunk_hashes)):
                return None
            allowed = self.salts.allowed_locked(salt, slot_bytes, absent)
            if not allowed:
                salt_wait = self.salts.wait_locked(salt, slot_bytes, absent, len(lease.slots))
                self.store_waits += salt_wait is not None
                return salt_wait
            self.store_waits += 1
            wait = AllocationWait(slot_bytes, allowed)
            if self._allocator.available(slot_bytes) >= allowed:
                wait.event.set()
            self._allocator.waits.add(slot_bytes, wait)
        self._index.request_eviction()  # which retries from now on, because some objects can be evicted only later
        return wait

    @property
    def stores_waiting(self) -> int:
        """Stores that wait for free space right now, in L1 or below their salt's limit.  Takes no lock."""
        return len(self._allocator.waits) + len(self.salts.waits)

    def end_wait(self, wait: AllocationWait) -> None:
        with self._index.lock:
            if wait.salt is not None:
                self.salts.waits.remove(wait.salt, wait)
            else:
                self._allocator.waits.remove(wait.slot_bytes, wait)

    def cancel_waits(self) -> None:
        """Wake all waiting stores; later waits are cancelled at once."""
        with self._index.lock:
            self._allocator.waits.cancel()
            self.salts.waits.cancel()

    # --- for the eviction policy

    def log_access(self, slots: list[int], facts: AccessFacts) -> None:
        """Log that a request, which references these slots, hit them.  The cache owns the list from now on."""
        if not slots:
            return
        with self._index.lock:
            self._index.access_log.accessed(slots, facts)
        self._index.signal_if_logged()

    def take_access_log(self) -> list[LogEntry]:
        """For the eviction controller: what has happened since the last call, for its policy."""
        with self._index.lock:
            return self._index.access_log.take()

    def take_demand(self) -> Counter[int]:
        """For the eviction controller: bytes that stores lack, by slot size: stores that found none since the last call, and
        those that still wait while objects could be evicted."""
        with self._index.lock:
            demand, self._demand = self._demand, Counter()
            if self._allocator.waits.by_key and self._table.cached:
                demand |= self._allocator.unmet_bytes()
            return demand

    def evict(self, slots: Sequence[int], reason: str = EVICTED) -> tuple[int, int]:
        """Remove the objects that are cached, unreferenced and unchanged since the policy last read the log.  Returns their
        number and bytes.  `reason` appears in counters and events."""
        with self._index.lock:
            victims = self._index.access_log.unchanged(self._table.evictable(slots))
            freed = sum(map(self._allocator.slot_bytes, victims))
            self._index.evict(victims, reason)
        self._index.publish_removals()
        return len(victims), freed

    @property
    def evicted(self) -> int:
        """Objects that were evicted since the start."""
        return self._index.evicted

    def evictions(self) -> dict[tuple[str, str], Evicted]:
        """Evicted objects since the start, by cache salt and reason."""
        with self._index.lock:
            return self._index.removal_log.evicted()

    def publish_removals_to(self, events: Publisher) -> None:
        """Publish `ObjectsRemoved` there while a subscriber wants it."""
        self._index.removal_log.events = events

    # --- referenced slots

    def buffer(self, slot: int) -> BorrowedBuffer:
        """Header page and payload of a referenced slot, exactly as long as the object."""
        length = HEADER_BYTES + self._index.record_of(slot).payload_bytes
        return BorrowedBuffer(self._arena.region, self._allocator.offset(slot), length)

    def fetch(self, slot: int) -> None:
        """Bring a referenced slot into memory before this thread reads or writes it.  Waits for the disk where L1 is a file,
        without the interpreter's lock.  Raises OSError when that fails."""
        self._arena.fetch(self._allocator.offset(slot), self._allocator.slot_bytes(slot))

    def seal(self, slots: Iterable[int], wall_ns: int) -> None:
        """Write the header pages of these published, referenced slots, each once while its object is here: adapters and peers
        read them.  Computes digests, so not for a request's thread.  Raises OSError where L1 is a file whose disk fails."""
        for slot in slots:
            if self._index.sealed[slot]:
                continue
            with self._sealing:
                if not self._index.sealed[slot]:
                    self.fetch(slot)
                    # What was noted when it was published: bytes that change from here on are found out when they come back.
                    known = self.checks.noted(slot) if self.checks else None
                    seal(self.buffer(slot).view, self.key_of(slot), wall_ns, known)
                    self._index.sealed[slot] = 1

    def payload_offset(self, slot: int) -> int:
        """Byte offset in the arena of the payload of a referenced slot."""
        return self._allocator.offset(slot) + HEADER_BYTES

    def key_of(self, slot: int) -> ObjectKey:
        """The key of the object in a referenced slot."""
        space, chunk_hash = self._table.key(slot)
        return ObjectKey(self._index.spaces.numbered(space).space, chunk_hash)

    # --- use

    @property
    def objects(self) -> int:
        """Objects in the index."""
        return self._table.findable

    @property
    def used_bytes(self) -> int:
        """Bytes of slots that are not free."""
        return self._index.used_bytes

    @property
    def used_ratio(self) -> float:
        """`used_bytes` of the whole arena."""
        return self._index.used_ratio

    def available(self, payload_bytes: int) -> int:
        """Free slots for objects of this size, without carving more."""
        return self._allocator.available(self.slot_bytes_for(payload_bytes))

    def available_to(self, salt: str, payload_bytes: int) -> int:
        """The same, within the salt's limit."""
        slot_bytes = self.slot_bytes_for(payload_bytes)
        with self._index.lock:
            return self.salts.allowed_locked(salt, slot_bytes, self._allocator.available(slot_bytes))

    # --- inside

    def _carve(self, slot_bytes: int, wanted: int) -> None:
        """Without the lock."""
        while True:
            with self._index.lock:
                missing = wanted - self._allocator.available(slot_bytes)
                extent = self._allocator.claim_extent(slot_bytes) if missing > 0 else None
            if extent is None:
                return
            backed = self._arena.back(extent.offset, extent.length)
            with self._index.lock:
                if not backed:
                    self._allocator.return_extent(extent)
                    return
                self._allocator.add_slab(slot_bytes, extent)
