"""The storage verbs: lookups over both tiers, holds of workers, stores on their way to L2."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple

from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.events import ChunksRetrieved, ChunksStored, LeasesExpired, LookupFinished, Publisher
from lmcache_core.contracts.policies import AccessFacts, RequestFacts
from lmcache_core.contracts.storage import Hold, LookupRequest, StoredSpace
from lmcache_core.controllers.prefetch import ABSENT, Prefetch, PrefetchController, Wanted
from lmcache_core.controllers.store import Batch, StoreController
from lmcache_core.l1.cache import Census, L1Cache
from lmcache_core.l1.index import SpaceRecord
from lmcache_core.l1.leases import Lease, LeaseState, Owner, OwnerKind
from lmcache_core.model.keys import KeySpace, ObjectKey
from lmcache_core.model.object_header import HEADER_BYTES
from lmcache_core.storage.lookups import Lookup, LookupTable, Row

logger = logging.getLogger(__name__)

LOOKUPS_MAX = 16384
"""Requests of one scheduler whose lookups are held; beyond it the oldest is let go."""
LOOKUP_AGE_MAX_SECONDS = 3600.0
"""How long a scheduler's pings keep a lookup held whose request it never ends."""
WORKER_LEASES_MAX = 4096
"""Transfers that one worker may have begun and not committed; a worker that asks for more is refused until it commits."""


class _Grant(NamedTuple):
    """What stands behind a hold."""

    lease: Lease
    record: SpaceRecord
    worker: int


@dataclass(slots=True)
class Counters:
    """Since the server started, in chunks."""

    lookups: int = 0
    requested: int = 0
    hit: int = 0
    loaded_from_l2: int = 0
    stored: int = 0
    retrieved: int = 0


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
    ) -> None:
        self._cache = cache
        self._store = store
        self._prefetch = prefetch
        self._read_ttl = read_ttl_seconds
        self._write_ttl = write_ttl_seconds
        self._clock = clock
        self._events = events
        self._lock = threading.Lock()
        self._lookups = LookupTable()
        self._worker_leases: dict[int, int] = {}
        self._takes_stores = True
        self.counters = Counters()

    # --- lookups

    def lookup(self, request: LookupRequest) -> None:
        now = self._clock.monotonic()
        owner = Owner(OwnerKind.LOOKUP, (request.connection, request.request_id))
        lease = self._cache.open(owner, now + self._read_ttl)
        prompt_chunks = len(request.chunk_hashes)
        lookup = Lookup(request.connection, request.request_id, lease, [], max(1, request.readers), now, prompt_chunks)
        with self._lock:
            replaced = self._lookups.pop(request.connection, request.request_id)
            lookup.noted_chunks = replaced.noted_chunks if replaced else 0
            oldest = self._lookups.oldest(request.connection, LOOKUPS_MAX)
            self._lookups.add(lookup)
        self._let_go(replaced)
        if oldest:
            self.end_lookup(oldest.connection, oldest.request_id)
        wanted = self._look_in_l1(lookup, request)
        if not lookup.rows or not wanted:
            self._finish(lookup, prompt_chunks if lookup.rows else 0, 0)
        elif self._prefetch.active:
            self._prefetch.submit(self._as_prefetch(lookup, wanted))
        else:
            self._finish(lookup, min(w.chunk for w in wanted), 0)

    def lookup_result(self, connection: bytes, request_id: str) -> int | None:
        with self._lock:
            lookup = self._lookups.find(connection, request_id)
            if lookup is None or lookup.given:
                return 0
            lookup.given = lookup.hit_chunks is not None
            return lookup.hit_chunks

    def on_lookup(self, connection: bytes, request_id: str, function: Callable[[int], bool]) -> None:
        with self._lock:
            lookup = self._lookups.find(connection, request_id)
            if lookup is not None and not lookup.given and lookup.hit_chunks is None:
                lookup.waiters.append(function)
                return
        if lookup is None or lookup.given or lookup.hit_chunks is None:
            function(0)
        else:
            lookup.given = function(lookup.hit_chunks)

    def free_lookup(self, connection: bytes, request_id: str, first_chunk: int, end_chunk: int) -> None:
        with self._lock:
            lookup = self._lookups.find(connection, request_id)
            spent = lookup.give_up(first_chunk, end_chunk) if lookup else []
        if lookup and spent:
            self._cache.release(lookup.lease, spent)

    def end_lookup(self, connection: bytes, request_id: str) -> None:
        with self._lock:
            lookup = self._lookups.pop(connection, request_id)
        self._let_go(lookup)

    def renew_lookups(self, connection: bytes) -> None:
        now = self._clock.monotonic()
        with self._lock:
            lookups = self._lookups.for_connection(connection)
        for lookup in lookups:
            # Not for ever: an engine that was cut off for a while forgets requests without a word.
            self._cache.renew(lookup.lease, min(now, lookup.begun + LOOKUP_AGE_MAX_SECONDS) + self._read_ttl)

    # --- reading

    def acquire(
        self, worker: int, request_id: str, space: StoredSpace, chunk_hashes: Sequence[bytes], first_chunk: int
    ) -> Hold | None:
        if not self._admit_worker(worker):
            return None
        record = self._cache.intern(space.space, space.payload_bytes)
        lease = self._cache.open(Owner(OwnerKind.WORKER, worker), self._clock.monotonic() + self._read_ttl)
        slots = self._cache.acquire_all(lease, [record.prefix + chunk_hash for chunk_hash in chunk_hashes])
        if slots is None:
            self._cache.end(lease)
            self._dismiss_worker(worker)
            return None
        with self._lock:
            self.counters.retrieved += len(slots)
            unclaimed = list(slots)
            claims = [
                (lookup, lookup.claim(space.space, first_chunk, unclaimed))
                for lookup in self._lookups.for_request(request_id)
            ]
        for lookup, spent in claims:
            self._cache.release(lookup.lease, spent)
        if not claims:  # nobody has looked it up, so nobody has told the policy of this hit
            self._cache.note_access(list(slots), AccessFacts(first_chunk, self._request_facts(request_id)))
        self._events.publish(
            ChunksRetrieved(
                space.space.model_name,
                space.space.cache_salt,
                space.space.kv_rank,
                len(slots),
                len(slots) * space.payload_bytes,
            )
        )
        return Hold(tuple(slots), _Grant(lease, record, worker))

    def release(self, hold: Hold) -> None:
        self._cache.end(hold.grant.lease)
        self._dismiss_worker(hold.grant.worker)

    # --- writing

    def has_room(self, space: StoredSpace, chunks: int) -> bool:
        return self._cache.available(space.payload_bytes) >= chunks

    def reserve(self, worker: int, space: StoredSpace, chunk_hashes: Sequence[bytes]) -> tuple[Hold, Sequence[int]]:
        record = self._cache.intern(space.space, space.payload_bytes)
        admitted = self._takes_stores and self._admit_worker(worker)
        deadline = self._clock.monotonic() + self._write_ttl
        lease, indexes = self._cache.reserve(
            Owner(OwnerKind.WORKER, worker), record, chunk_hashes if admitted else [], deadline
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
        request = self._request_facts(request_id)
        published = self._cache.publish(lease, hold.slots, [onward] if onward else [], first_chunk, request=request)
        if onward is not None and published:
            self._store.offer(Batch(onward, hold.slots, len(hold.slots) * object_bytes))
        elif onward is not None:
            self._store.withdraw(onward, len(hold.slots), object_bytes)
        if not published:
            # The worker has answered, so its slots are its own no more; what it wrote came too late.
            self._cache.end(lease)
            return False
        space = record.space
        with self._lock:
            self.counters.stored += len(hold.slots)
        self._events.publish(
            ChunksStored(
                space.model_name,
                space.cache_salt,
                space.kv_rank,
                len(hold.slots),
                len(hold.slots) * record.payload_bytes,
            )
        )
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
        with self._lock:
            over = [lookup for lookup in self._lookups.everything() if lookup.lease.state is LeaseState.ENDED]
        for lookup in over:
            self._drop(lookup)
        if dropped or quarantined:
            self._events.publish(LeasesExpired(dropped, quarantined))

    def take_no_stores(self) -> None:
        """From now on workers are told that there is nothing to store.  For shutdown."""
        self._takes_stores = False

    def census(self) -> Census:
        return self._cache.census()

    @property
    def lookups_open(self) -> int:
        return len(self._lookups)

    # --- inside

    def _look_in_l1(self, lookup: Lookup, request: LookupRequest) -> list[Wanted]:
        """Hold what L1 has, row by row; returns what is missing, under every layout that it may have."""
        wanted: list[Wanted] = []
        for shard in request.shards:
            records = [self._cache.intern(space, size) for space, size in shard.spaces]
            spaces: tuple[KeySpace, ...] = tuple(record.space for record in records)
            row = Row([ABSENT] * len(request.chunk_hashes), spaces)
            lookup.rows.append(row)
            missing = list(range(len(request.chunk_hashes)))
            for record in records:
                slots = self._cache.acquire(lookup.lease, [record.prefix + request.chunk_hashes[c] for c in missing])
                for chunk, slot in zip(missing, slots, strict=True):
                    row.slots[chunk] = slot
                missing = [chunk for chunk in missing if row.slots[chunk] == ABSENT]
            row.in_l1 = row.slots.copy()
            index = len(lookup.rows) - 1
            wanted += [
                Wanted(index, chunk, record, ObjectKey(record.space, request.chunk_hashes[chunk]))
                for chunk in missing
                for record in records
            ]
        return wanted

    def _as_prefetch(self, lookup: Lookup, wanted: list[Wanted]) -> Prefetch:
        return Prefetch(
            request_id=lookup.request_id,
            lease=lookup.lease,
            rows=[row.slots for row in lookup.rows],
            wanted=wanted,
            on_done=lambda prefix, loaded: self._finish(lookup, prefix, loaded),
            begun=lookup.begun,
            request=self._facts_of(lookup),
        )

    def _finish(self, lookup: Lookup, hit_chunks: int, loaded: int) -> None:
        behind = [slot for row in lookup.rows for slot in row.slots[hit_chunks:] if slot != ABSENT]
        if behind:
            self._cache.release(lookup.lease, behind)
        if lookup.lease.state is not LeaseState.ACTIVE:
            return  # it was replaced or ended meanwhile, and answered then
        with self._lock:
            lookup.settle(hit_chunks)
            waiters, lookup.waiters = lookup.waiters, []
            self.counters.lookups += 1
            self.counters.requested += lookup.prompt_chunks
            self.counters.hit += hit_chunks
            self.counters.loaded_from_l2 += loaded
        for waiter in waiters:
            lookup.given = waiter(hit_chunks) or lookup.given
        self._note_hits(lookup, hit_chunks)
        space = lookup.rows[0].spaces[0] if lookup.rows and lookup.rows[0].spaces else None
        self._events.publish(
            LookupFinished(
                lookup.request_id,
                space.model_name if space else "",
                space.cache_salt if space else "",
                lookup.prompt_chunks,
                hit_chunks,
                loaded,
                self._clock.monotonic() - lookup.begun,
            )
        )

    def _note_hits(self, lookup: Lookup, hit_chunks: int) -> None:
        """Tell the eviction policy what was hit in L1, once per request: engines repeat lookups while they queue."""
        first, lookup.noted_chunks = lookup.noted_chunks, max(lookup.noted_chunks, hit_chunks)
        facts = AccessFacts(first, self._facts_of(lookup))
        for row in lookup.rows:
            hit = [slot for slot in row.in_l1[first:hit_chunks] if slot != ABSENT]
            row.in_l1 = []
            self._cache.note_access(hit, facts)
            if hit and self._takes_stores and self._store.plans_hits:
                self._offer_again(lookup, hit)

    def _offer_again(self, lookup: Lookup, slots: Sequence[int]) -> None:
        """The store policy may want what was used again in L2 after all."""
        sizes = self._cache.object_sizes(lookup.lease, dict.fromkeys(slots))
        for object_bytes, alike in sizes.items():
            lease = self._store.admit(len(alike), object_bytes, hit=True)
            if lease is None:
                continue
            shared = self._cache.share(lease, lookup.lease, alike)
            if missing := len(alike) - len(shared):
                self._store.forgo(missing, object_bytes)
            if shared:
                self._store.offer(Batch(lease, tuple(shared), len(shared) * object_bytes, hit=True))
            else:
                self._cache.end(lease)

    def _request_facts(self, request_id: str) -> RequestFacts:
        """What the open lookups of a request say about it; where engines share the id, the latest."""
        with self._lock:
            lookups = self._lookups.for_request(request_id)
            lookup = lookups[-1] if lookups else None
        if lookup is None:
            return RequestFacts(self._clock.monotonic(), _request_number(request_id))
        return self._facts_of(lookup)

    def _facts_of(self, lookup: Lookup) -> RequestFacts:
        number = _request_number(lookup.request_id)
        return RequestFacts(self._clock.monotonic(), number, lookup.prompt_chunks, lookup.hit_chunks or 0)

    def _let_go(self, lookup: Lookup | None) -> None:
        """A lookup that is in the table no more."""
        if lookup is None:
            return
        with self._lock:
            waiters, lookup.waiters = lookup.waiters, []
        self._cache.end(lookup.lease)
        for waiter in waiters:
            waiter(0)

    def _drop(self, lookup: Lookup) -> None:
        """Forget this very lookup; a newer one of the same request stays."""
        with self._lock:
            if self._lookups.find(lookup.connection, lookup.request_id) is lookup:
                self._lookups.pop(lookup.connection, lookup.request_id)
            waiters, lookup.waiters = lookup.waiters, []
        for waiter in waiters:
            waiter(0)

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


def _request_number(request_id: str) -> int:
    """For policies, which tell requests apart and need no more than that."""
    return hash(request_id) & 0x7FFFFFFFFFFFFFFF if request_id else 0
