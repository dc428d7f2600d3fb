"""The storage verbs of request modules: lookups over both tiers, references of workers, stores on their way to L2."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple

from lmcache_core.contracts.cache_control import PinOwner
from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.events import CacheCleared, LeasesExpired, Publisher, RequestEnded
from lmcache_core.contracts.storage import LookupRequest, SlotReferences, SparseLookupRequest, StoredSpace
from lmcache_core.controllers.prefetch import PrefetchController
from lmcache_core.controllers.store import StoreController
from lmcache_core.controllers.store_units import Batch
from lmcache_core.l1.cache import L1Cache
from lmcache_core.l1.index import SpaceRecord
from lmcache_core.l1.leases import Lease, LeaseState, Owner, OwnerKind
from lmcache_core.l1.read_checks import QUICK_BYTES, ReadChecks
from lmcache_core.model.object_header import HEADER_BYTES
from lmcache_core.model.results import Bitmap
from lmcache_core.storage.counters import MISSING, NO_ROOM, OVERWRITTEN, QUOTA, TOO_MANY, Counters, TransferEvents
from lmcache_core.storage.freeze import Freeze
from lmcache_core.storage.lookups import HitNotifier, Lookups
from lmcache_core.storage.read_leases import ReadLeases

WORKER_LEASES_MAX = 4096
"""Transfers that one worker may have begun and not committed; a worker that asks for more is refused until it commits."""


class _Handle(NamedTuple):
    """The storage's own record of references."""

    lease: Lease
    record: SpaceRecord
    worker: int
    started: float
    request_id: str = ""
    """Of a read, and the place of its first chunk in the prompt; a store says both when it is committed."""
    first_chunk: int = 0


class StorageManager:
    """Implements `contracts.storage.Storage`; its docstrings say what each verb promises.  Safe from any thread."""

    def __init__(
        self,
        cache: L1Cache,
        store: StoreController,
        prefetch: PrefetchController,
        read_ttl_seconds: float,
        write_ttl_seconds: float,
        clock: Clock,
        events: Publisher,
        allocation_wait_seconds: float = 0.0,
        pin_max_bytes: int = 0,
    ) -> None:
        self._cache = cache
        self.allocation_wait_seconds = allocation_wait_seconds
        """How long a store waits for free space.  May be set at any time, for what comes from then on."""
        self._store = store
        self._read_ttl = read_ttl_seconds
        self._write_ttl = write_ttl_seconds
        self._clock = clock
        self._events = events
        self._lock = threading.Lock()
        self._worker_leases: dict[int, int] = {}
        self.freeze = Freeze(clock)
        self.expired = (0, 0)
        """Slots that were released because their deadline had passed, and those that went to quarantine."""
        self.counters = Counters()
        cache.publish_removals_to(events)
        self._transfers = TransferEvents(cache, self.counters, clock, events)
        self._hits = HitNotifier(cache, store)
        self._lookups = Lookups(
            cache, prefetch, self._hits, self.counters, read_ttl_seconds, clock, events, self.freeze
        )
        self.lookup: Callable[[LookupRequest], None] = self._lookups.begin
        self.lookup_sparse: Callable[[SparseLookupRequest], None] = self._lookups.begin
        self.expected_hits, self.free_lookup = self._lookups.expected, self._lookups.free
        self.lookup_result: Callable[[bytes, str], int | None] = partial(self._lookups.result, sparse=False)
        self.sparse_result: Callable[[bytes, str], Bitmap | None] = partial(self._lookups.result, sparse=True)
        self.on_lookup = partial(self._lookups.on_result, sparse=False)
        self.on_sparse_lookup = partial(self._lookups.on_result, sparse=True)
        self.renew_lookups = self._lookups.renew
        self.lease_reads = ReadLeases(cache, clock).lease
        self.payload_offset = cache.payload_offset
        self.state_counts = cache.contents.state_counts
        self.pins = PinOwner(pin_max_bytes)
        """Replaced where a service pins objects."""
        cache.slabs.fixed_slots = lambda: self.pins.slots()

    # --- lookups

    def end_lookup(self, connection: bytes, request_id: str) -> None:
        self._lookups.end(connection, request_id)
        if self._events.wants(RequestEnded):
            self._events.publish(RequestEnded(request_id))

    # --- reading

    def acquire(
        self, worker: int, request_id: str, space: StoredSpace, chunk_hashes: Sequence[bytes], first_chunk: int
    ) -> SlotReferences | None:
        if not self._admit_worker(worker):
            self.counters.unread(space.space, len(chunk_hashes), TOO_MANY)
            return None
        record = self._cache.intern(space.space, space.payload_bytes)
        now = self._clock.monotonic()
        lease = self._cache.leases.open(Owner(OwnerKind.WORKER, worker), now + self._read_ttl)
        slots = self._cache.leases.acquire_all(lease, record, chunk_hashes)
        checks, reason = self._cache.checks, MISSING if slots is None else ""
        if checks is not None and slots:
            reason = self._check(checks, worker, lease, slots)
        if slots is None or reason:
            self._cache.leases.end(lease)
            self._dismiss_worker(worker)
            self.counters.unread(space.space, len(chunk_hashes), reason)
            return None
        if not self._lookups.claim(request_id, space.space, first_chunk, slots):
            # No lookup of this request has notified the policy of this hit.
            self._hits.read_unasked(slots, first_chunk, self._lookups.facts(request_id))
        self._transfers.acquired(space.space, space.payload_bytes, chunk_hashes, first_chunk, request_id)
        return SlotReferences(tuple(slots), _Handle(lease, record, worker, now, request_id, first_chunk))

    def release(self, references: SlotReferences) -> None:
        lease, record, worker, started, request_id, first_chunk = references.handle
        was_held = lease.state is not LeaseState.ENDED
        self._cache.leases.end(lease)
        self._dismiss_worker(worker)
        if was_held:
            self._transfers.released(record, len(references.slots), first_chunk, request_id, started)

    def is_quick(self, payload_bytes: int) -> bool:
        return self._cache.checks is None or payload_bytes <= QUICK_BYTES

    # --- writing

    def has_room(self, space: StoredSpace, chunks: int) -> bool:
        return self._cache.available_to(space.space.cache_salt, space.payload_bytes) >= chunks

    def reserve(
        self, worker: int, space: StoredSpace, chunk_hashes: Sequence[bytes], may_wait: Callable[[], bool] | None = None
    ) -> tuple[SlotReferences, Sequence[int]]:
        record = self._cache.intern(space.space, space.payload_bytes)
        refused = self.freeze.refuses if self.freeze.refuses and self.freeze.lasts() else ""
        admitted = not refused and self._admit_worker(worker)
        now = self._clock.monotonic()
        lease, indexes = self._cache.reserve(
            Owner(OwnerKind.WORKER, worker), record, chunk_hashes if admitted else [], now + self._write_ttl
        )
        if may_wait is not None and admitted and self.allocation_wait_seconds:
            indexes = reserve_with_wait(
                self._cache, lease, record, chunk_hashes, indexes, self.allocation_wait_seconds, may_wait
            )
        slots = tuple(lease.slots)
        if not slots:
            self._cache.leases.end(lease)
            if admitted:
                self._dismiss_worker(worker)
        if len(slots) < len(chunk_hashes):
            self._publish_refused(lease, record, chunk_hashes, "" if admitted else refused or TOO_MANY)
        return SlotReferences(slots, _Handle(lease, record, worker, now)), indexes

    def publish(self, references: SlotReferences, first_chunk: int, request_id: str) -> bool:
        lease, record, worker, started, _, _ = references.handle
        self._dismiss_worker(worker)
        if self._cache.checks is not None:
            self._note(self._cache.checks, lease, references.slots)
        hashes = self._transfers.hashes_to_publish(references.slots)
        object_bytes = HEADER_BYTES + record.payload_bytes
        onward = self._store.admit(len(references.slots), object_bytes) if self._store.active else None
        request = self._lookups.facts(request_id)
        published = self._cache.publish(
            lease, references.slots, [onward] if onward else [], first_chunk, request=request
        )
        if onward is not None and published:
            size = len(references.slots) * object_bytes
            chunks = range(first_chunk, first_chunk + len(references.slots))
            self._store.offer(Batch(onward, references.slots, chunks, size, request_id=request_id, request=request))
        elif onward is not None:
            self._store.withdraw(onward, len(references.slots), object_bytes)
        if not published:
            # The worker has answered, so its slots are its own no more; what it wrote came too late.
            self._cache.leases.end(lease)
            self.counters.stored_late(record.space)
            return False
        self._transfers.stored(record, len(references.slots), first_chunk, request_id, started, hashes)
        return True

    def is_live(self, references: SlotReferences) -> bool:
        return bool(references.handle.lease.state is LeaseState.ACTIVE)

    def using(self, references: SlotReferences) -> AbstractContextManager[bool]:
        return self._cache.leases.using(references.handle.lease)

    def discard(self, references: SlotReferences) -> None:
        if not references.slots:
            return
        self._cache.leases.end(references.handle.lease)
        self._dismiss_worker(references.handle.worker)

    def end_worker(self, worker: int) -> None:
        self._cache.leases.end_all(Owner(OwnerKind.WORKER, worker))
        with self._lock:
            self._worker_leases.pop(worker, None)

    def quarantine_worker(self, worker: int, ends_reads: bool) -> bool:
        return self._cache.leases.quarantine_all(Owner(OwnerKind.WORKER, worker), ends_reads) > 0

    # --- the rest

    def payload(self, slot: int) -> memoryview:
        self._cache.fetch(slot)
        return self._cache.buffer(slot).view[HEADER_BYTES:]

    def clear(self, force: bool) -> int:
        dropped = self._cache.contents.clear(force)
        if force:
            self.pins.clear()
        self._events.publish(CacheCleared(dropped, force))
        return dropped

    def expire(self) -> None:
        """Apply deadlines; called every now and then."""
        dropped, quarantined = self._cache.leases.expire(self._clock.monotonic())
        self._lookups.expire()
        self.pins.expire()
        if dropped or quarantined:
            self.expired = (self.expired[0] + dropped, self.expired[1] + quarantined)
            self._events.publish(LeasesExpired(dropped, quarantined))

    def take_no_stores(self) -> None:
        """From now on workers get the answer that there is nothing to store.  For shutdown."""
        self.freeze.stop()
        self._cache.cancel_waits()
        self._hits.offers = False

    @property
    def lookups_open(self) -> int:
        return len(self._lookups)

    @property
    def oldest_lookup_seconds(self) -> float:
        """How long ago the oldest of these began."""
        return self._lookups.oldest_seconds

    # --- inside

    def _check(self, checks: ReadChecks, worker: int, lease: Lease, slots: Sequence[int]) -> str:
        """Why these slots cannot be borrowed; empty: they can."""
        try:
            with self._cache.leases.using(lease) as alive:
                if not alive:
                    return MISSING  # the worker has left meanwhile
                return OVERWRITTEN if checks.changed(slots) else ""
        except BaseException:  # L1 is a file, and its disk fails
            self._cache.leases.end(lease)
            self._dismiss_worker(worker)
            raise

    def _note(self, checks: ReadChecks, lease: Lease, slots: Sequence[int]) -> None:
        """They are about to be published; unless the lease has ended, which `publish` finds out."""
        try:
            with self._cache.leases.using(lease) as alive:
                if alive:
                    checks.note(slots)
        except BaseException:  # L1 is a file, and its disk fails
            self._cache.leases.end(lease)
            raise

    def _admit_worker(self, worker: int) -> bool:
        with self._lock:
            leases = self._worker_leases.get(worker, 0)
            if leases >= WORKER_LEASES_MAX:
                return False
            self._worker_leases[worker] = leases + 1
        return True

    def _dismiss_worker(self, worker: int) -> None:
        with self._lock:
            if self._worker_leases.get(worker):
                self._worker_leases[worker] -= 1

    def _publish_refused(self, lease: Lease, record: SpaceRecord, chunk_hashes: Sequence[bytes], refused: str) -> None:
        """What has no slot and was not there already.  `refused`: why nothing was to get one."""
        if not refused:
            counts = {NO_ROOM: lease.unallocated, QUOTA: lease.beyond_quota}
        else:
            absent = self._cache.count_absent(record, chunk_hashes)
            counts = {refused: absent}
        for reason, chunks in counts.items():
            if chunks:
                self._transfers.refused(record.space, record.payload_bytes, chunks, reason)


WAIT_CHECK_SECONDS = 0.005
"""How often a wait asks whether it may go on; the longest that it keeps others from its thread."""


def reserve_with_wait(
    cache: L1Cache,
    lease: Lease,
    record: SpaceRecord,
    chunk_hashes: Sequence[bytes],
    indexes: Sequence[int],
    seconds: float,
    may_wait: Callable[[], bool],
) -> list[int]:
    """Go on with a reservation that has got `indexes` of these chunks so far, until nothing is missing, `seconds` are
    over, `may_wait` says no or the server stops.  What has been reserved meanwhile is not filled yet, and
    others may need it: so no wait is without an end.  Returns all indexes, in order."""
    got = list(indexes)
    deadline = time.monotonic() + seconds
    come = True
    while come:
        rest = chunk_hashes[got[-1] + 1 :] if got else chunk_hashes
        wait = cache.wait_for_space(lease, record, rest)
        if wait is None:
            break
        try:
            come = _is_free_in_time(wait.event, deadline, may_wait) and not wait.cancelled
        finally:
            cache.end_wait(wait)
        first = len(chunk_hashes) - len(rest)
        got += [first + index for index in cache.extend(lease, record, rest, ask_eviction=come)]
    return got


def _is_free_in_time(event: threading.Event, deadline: float, may_wait: Callable[[], bool]) -> bool:
    while (left := deadline - time.monotonic()) > 0:
        if event.wait(min(left, WAIT_CHECK_SECONDS)):
            return True
        if not may_wait():
            return False
    return False
