"""The storage verbs: lookups over both tiers, holds of workers, stores on their way to L2."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.events import ChunksRetrieved, ChunksStored, LeasesExpired, Publisher
from lmcache_core.contracts.storage import Hold, LookupRequest, SparseLookupRequest, StoredSpace
from lmcache_core.controllers.prefetch import PrefetchController
from lmcache_core.controllers.store import Batch, StoreController
from lmcache_core.l1.cache import L1Cache
from lmcache_core.l1.census import Census
from lmcache_core.l1.index import SpaceRecord
from lmcache_core.l1.leases import Lease, LeaseState, Owner, OwnerKind
from lmcache_core.model.bitmap import Bitmap
from lmcache_core.model.keys import KeySpace
from lmcache_core.model.object_header import HEADER_BYTES
from lmcache_core.storage.access_notes import AccessNotes
from lmcache_core.storage.counters import Counters
from lmcache_core.storage.lookups import Lookups
from lmcache_core.storage.patience import reserve_patiently

WORKER_LEASES_MAX = 4096
"""Transfers that one worker may have begun and not committed; a worker that asks for more is refused until it commits."""


class _Grant(NamedTuple):
    """What stands behind a hold."""

    lease: Lease
    record: SpaceRecord
    worker: int


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
    ) -> None:
        self._cache = cache
        self._allocation_wait = allocation_wait_seconds
        self._store = store
        self._read_ttl = read_ttl_seconds
        self._write_ttl = write_ttl_seconds
        self._clock = clock
        self._events = events
        self._lock = threading.Lock()
        self._worker_leases: dict[int, int] = {}
        self._takes_stores = True
        self.counters = Counters()
        self._notes = AccessNotes(cache, store)
        self._lookups = Lookups(cache, prefetch, self._notes, self.counters, read_ttl_seconds, clock, events)

    # --- lookups

    def lookup(self, request: LookupRequest) -> None:
        self._lookups.begin(request)

    def lookup_sparse(self, request: SparseLookupRequest) -> None:
        self._lookups.begin(request)

    def lookup_result(self, connection: bytes, request_id: str) -> int | None:
        found: int | None = self._lookups.result(connection, request_id, sparse=False)
        return found

    def on_lookup(self, connection: bytes, request_id: str, function: Callable[[int], bool]) -> None:
        self._lookups.on_result(connection, request_id, function, sparse=False)

    def sparse_result(self, connection: bytes, request_id: str) -> Bitmap | None:
        found: Bitmap | None = self._lookups.result(connection, request_id, sparse=True)
        return found

    def on_sparse_lookup(self, connection: bytes, request_id: str, function: Callable[[Bitmap], bool]) -> None:
        self._lookups.on_result(connection, request_id, function, sparse=True)

    def free_lookup(self, connection: bytes, request_id: str, first_chunk: int, end_chunk: int) -> None:
        self._lookups.free(connection, request_id, first_chunk, end_chunk)

    def end_lookup(self, connection: bytes, request_id: str) -> None:
        self._lookups.end(connection, request_id)

    def renew_lookups(self, connection: bytes) -> None:
        self._lookups.renew(connection)

    # --- reading

    def acquire(
        self, worker: int, request_id: str, space: StoredSpace, chunk_hashes: Sequence[bytes], first_chunk: int
    ) -> Hold | None:
        if not self._admit_worker(worker):
            return None
        record = self._cache.intern(space.space, space.payload_bytes)
        lease = self._cache.open(Owner(OwnerKind.WORKER, worker), self._clock.monotonic() + self._read_ttl)
        slots = self._cache.acquire_all(lease, record, chunk_hashes)
        if slots is None:
            self._cache.end(lease)
            self._dismiss_worker(worker)
            return None
        with self._lock:
            self.counters.retrieved += len(slots)
        if not self._lookups.claim(request_id, space.space, first_chunk, slots):
            # Nobody has looked it up, so nobody has told the policy of this hit.
            self._notes.read_unasked(slots, first_chunk, self._lookups.facts(request_id))
        if self._events.wants(ChunksRetrieved):
            self._events.publish(ChunksRetrieved(*_counted(space.space, len(slots), space.payload_bytes)))
        return Hold(tuple(slots), _Grant(lease, record, worker))

    def release(self, hold: Hold) -> None:
        self._cache.end(hold.grant.lease)
        self._dismiss_worker(hold.grant.worker)

    # --- writing

    def has_room(self, space: StoredSpace, chunks: int) -> bool:
        return self._cache.available_to(space.space.cache_salt, space.payload_bytes) >= chunks

    def reserve(
        self,
        worker: int,
        space: StoredSpace,
        chunk_hashes: Sequence[bytes],
        may_wait: Callable[[], bool] | None = None,
    ) -> tuple[Hold, Sequence[int]]:
        record = self._cache.intern(space.space, space.payload_bytes)
        admitted = self._takes_stores and self._admit_worker(worker)
        deadline = self._clock.monotonic() + self._write_ttl
        lease, indexes = self._cache.reserve(
            Owner(OwnerKind.WORKER, worker), record, chunk_hashes if admitted else [], deadline
        )
        if may_wait is not None and admitted and self._allocation_wait:
            indexes = reserve_patiently(
                self._cache, lease, record, chunk_hashes, indexes, self._allocation_wait, may_wait
            )
        slots = tuple(lease.slots)
        if not slots:
            self._cache.end(lease)
            if admitted:
                self._dismiss_worker(worker)
        return Hold(slots, _Grant(lease, record, worker)), indexes

    def publish(self, hold: Hold, first_chunk: int, request_id: str) -> bool:
        lease, record, worker = hold.grant
        self._dismiss_worker(worker)
        object_bytes = HEADER_BYTES + record.payload_bytes
        onward = self._store.admit(len(hold.slots), object_bytes) if self._store.active else None
        request = self._lookups.facts(request_id)
        published = self._cache.publish(lease, hold.slots, [onward] if onward else [], first_chunk, request=request)
        if onward is not None and published:
            self._store.offer(Batch(onward, hold.slots, len(hold.slots) * object_bytes, first_chunk=first_chunk))
        elif onward is not None:
            self._store.withdraw(onward, len(hold.slots), object_bytes)
        if not published:
            # The worker has answered, so its slots are its own no more; what it wrote came too late.
            self._cache.end(lease)
            return False
        with self._lock:
            self.counters.stored += len(hold.slots)
        if self._events.wants(ChunksStored):
            self._events.publish(ChunksStored(*_counted(record.space, len(hold.slots), record.payload_bytes)))
        return True

    def is_live(self, hold: Hold) -> bool:
        return bool(hold.grant.lease.state is LeaseState.ACTIVE)

    def using(self, hold: Hold) -> AbstractContextManager[bool]:
        return self._cache.using(hold.grant.lease)

    def discard(self, hold: Hold) -> None:
        if not hold.slots:
            return
        self._cache.end(hold.grant.lease)
        self._dismiss_worker(hold.grant.worker)

    def end_worker(self, worker: int) -> None:
        self._cache.end_all(Owner(OwnerKind.WORKER, worker))
        with self._lock:
            self._worker_leases.pop(worker, None)

    # --- the rest

    def payload(self, slot: int) -> memoryview:
        return self._cache.buffer(slot).view[HEADER_BYTES:]

    def payload_offset(self, slot: int) -> int:
        return self._cache.payload_offset(slot)

    def clear(self, force: bool) -> int:
        return self._cache.clear(force)

    def expire(self) -> None:
        """Apply deadlines; called every now and then."""
        dropped, quarantined = self._cache.expire(self._clock.monotonic())
        self._lookups.expire()
        if dropped or quarantined:
            self._events.publish(LeasesExpired(dropped, quarantined))

    def take_no_stores(self) -> None:
        """From now on workers are told that there is nothing to store.  For shutdown."""
        self._takes_stores = False
        self._cache.end_waits()
        self._notes.offer_no_more()

    def census(self) -> Census:
        return self._cache.census()

    @property
    def lookups_open(self) -> int:
        return len(self._lookups)

    # --- inside

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


def _counted(space: KeySpace, chunks: int, payload_bytes: int) -> tuple[str, str, int, int, int]:
    """The fields of an event about so many chunks of a space."""
    return space.model_name, space.cache_salt, space.kv_rank, chunks, chunks * payload_bytes
