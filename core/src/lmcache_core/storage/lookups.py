"""Where the answer of a lookup is made, over both tiers.

A lookup references what L1 has, at once; what is missing goes on as a prefetch.  It is answered once: when everything is
there, when the prefetch has loaded what it can, or when its time is over.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.events import LookupFinished, LookupHashes, LookupStarted, Publisher, RequestEnded
from lmcache_core.contracts.policies import AccessFacts, RequestFacts
from lmcache_core.contracts.storage import READERS_MAX, LookupRequest, Shard, SparseLookupRequest
from lmcache_core.controllers.prefetch import PrefetchController
from lmcache_core.controllers.prefetch_request import ABSENT, Prefetch, PrefetchRow, PrefixMatch, match_of, prefix_of
from lmcache_core.controllers.store import StoreController
from lmcache_core.controllers.store_units import Batch
from lmcache_core.l1.cache import L1Cache
from lmcache_core.l1.index import SpaceRecord
from lmcache_core.l1.leases import Lease, LeaseState, Owner, OwnerKind
from lmcache_core.model.keys import KeySpace
from lmcache_core.model.results import Bitmap
from lmcache_core.storage.counters import FROZEN, Counters
from lmcache_core.storage.freeze import Freeze
from lmcache_core.storage.open_lookups import Lookup, LookupTable, PrefixRow, SparseRow, notify, request_number

logger = logging.getLogger(__name__)


def check_lookup(request: LookupRequest) -> None:
    """Raises ValueError for what no lookup can be."""
    if request.readers > READERS_MAX:
        raise ValueError(f"a lookup for {request.readers} readers; at most {READERS_MAX} may read a chunk")
    for number, shard in enumerate(request.shards):
        if shard.window is None:
            continue
        if isinstance(request, SparseLookupRequest):
            raise ValueError(f"shard {number} has a window of {shard.window}; a sparse lookup takes shards without")
        if shard.window < 1:
            raise ValueError(f"shard {number} has a window of {shard.window} chunks; it is at least one chunk long")


def look_in_l1(cache: L1Cache, lookup: Lookup, request: LookupRequest) -> list[tuple[SpaceRecord, ...]]:
    """Hold what is there, row by row, under every layout that a chunk may have.  Returns the layouts of each row."""
    layouts = []
    hashes = request.chunk_hashes
    kind = SparseRow if lookup.sparse else PrefixRow
    for shard in request.shards:
        slots, records = hold_shard(cache, lookup.lease, shard, hashes)
        row = kind(slots, tuple([record.space for record in records]))
        row.in_l1 = slots.copy() if ABSENT in slots else slots
        lookup.rows.append(row)
        lookup.windows.append(shard.window)
        layouts.append(records)
    return layouts


def hold_shard(
    cache: L1Cache, lease: Lease, shard: Shard, chunk_hashes: Sequence[bytes]
) -> tuple[list[int], tuple[SpaceRecord, ...]]:
    """Hold what is there of one shard, under whichever of its layouts: a slot or ABSENT for each chunk, and the layouts."""
    records = tuple([cache.intern(space, size) for space, size in shard.spaces])
    slots = cache.leases.acquire(lease, records[0], chunk_hashes) if records else [ABSENT] * len(chunk_hashes)
    for record in records[1:]:
        missing = [chunk for chunk, slot in enumerate(slots) if slot == ABSENT]
        others = cache.leases.acquire(lease, record, [chunk_hashes[chunk] for chunk in missing])
        for chunk, slot in zip(missing, others, strict=True):
            slots[chunk] = slot
    return slots, records


class HitNotifier:
    """Notifies policies of hits: the eviction policy always, the store policy where it asked for it.  Safe from any thread."""

    def __init__(self, cache: L1Cache, store: StoreController) -> None:
        self._cache = cache
        self._store = store
        self.offers = True
        """Whether hits are offered to the store policy; set to False for shutdown."""

    def notify(self, lookup: Lookup, seconds: float) -> None:
        """A lookup has its answer.  Policies are notified of each hit in L1 once per request: engines repeat lookups while
        they queue."""
        first, lookup.notified_chunks = lookup.notified_chunks, max(lookup.notified_chunks, lookup.hit_chunks)
        facts = AccessFacts(first, lookup.facts(seconds))
        for row in lookup.rows:
            hit = row.take_hits(first)
            self._cache.log_access(hit, facts)
            if hit and self.offers and self._store.active and self._store.guarded.policy.plans_hits:
                self._offer(lookup, hit, row.positions(), facts.request)

    def read_unasked(self, slots: Sequence[int], first_chunk: int, request: RequestFacts) -> None:
        """A worker reads what no lookup of its request has hit."""
        self._cache.log_access(list(slots), AccessFacts(first_chunk, request))

    def _offer(self, lookup: Lookup, slots: Sequence[int], positions: Mapping[int, int], request: RequestFacts) -> None:
        """The store policy may want what was used again in L2 after all."""
        sizes = self._cache.leases.object_sizes(lookup.lease, dict.fromkeys(slots))
        for object_bytes, alike in sizes.items():
            lease = self._store.admit(len(alike), object_bytes, hit=True)
            if lease is None:
                continue
            shared = self._cache.leases.share(lease, lookup.lease, alike)
            if missing := len(alike) - len(shared):
                self._store.forgo(missing, object_bytes)
            if shared:
                size = len(shared) * object_bytes
                chunks = [positions[slot] for slot in shared]
                self._store.offer(
                    Batch(lease, tuple(shared), chunks, size, hit=True, request_id=lookup.request_id, request=request)
                )
            else:
                self._cache.leases.end(lease)


LOOKUPS_MAX = 16384
"""Open lookups of one scheduler; beyond it the oldest is ended."""
LOOKUP_AGE_MAX_SECONDS = 3600.0
"""How long a scheduler's pings keep a lookup held whose request it never ends."""
STUCK_SECONDS = 5.0
"""A lookup that is overdue by so much is answered with nothing: the thread that should answer it hangs, in a plugin."""


class Lookups:
    """Safe from any thread."""

    def __init__(
        self,
        cache: L1Cache,
        prefetch: PrefetchController,
        hits: HitNotifier,
        counters: Counters,
        read_ttl_seconds: float,
        clock: Clock,
        events: Publisher,
        freeze: Freeze,
    ) -> None:
        self._cache = cache
        self._prefetch = prefetch
        self._freeze = freeze
        self._hits = hits
        self._counters = counters
        self._read_ttl = read_ttl_seconds
        self._clock = clock
        self._events = events
        self._lock = threading.Lock()
        self._table = LookupTable()

    def __len__(self) -> int:
        return len(self._table)

    @property
    def oldest_seconds(self) -> float:
        """How long ago the oldest open lookup began; 0 where there is none."""
        with self._lock:
            started = self._table.oldest_started()
        return 0.0 if started is None else max(0.0, self._clock.monotonic() - started)

    # --- starting

    def begin(self, request: LookupRequest) -> None:
        check_lookup(request)
        now = self._clock.monotonic()
        owner = Owner(OwnerKind.LOOKUP, (request.connection, request.request_id))
        lookup = Lookup.of(request, self._cache.leases.open(owner, now + self._read_ttl), now)
        if self._events.wants(LookupStarted):
            self._events.publish(lookup.started())
        if request.chunk_hashes and self._events.wants(LookupHashes):
            self._events.publish(lookup.hashes(request.chunk_hashes))
        with self._lock:
            replaced, oldest = self._table.add(lookup, LOOKUPS_MAX)
            lookup.notified_chunks = replaced.notified_chunks if replaced else 0
        if oldest:
            self._drop(oldest)
        try:
            records = look_in_l1(self._cache, lookup, request)
        except BaseException:
            self._drop(lookup)
            raise
        finally:
            if replaced:
                self._close(replaced)  # only now, so that what was loaded for it alone is still found
        match = _match_in_l1(lookup)
        found = match.answer if isinstance(match.answer, int) else len(match.answer)
        if found == lookup.prompt_chunks or not lookup.rows or request.in_l1_only or not self._looks_in_l2():
            self._finish(lookup, match)
        else:
            self._go_on_in_l2(lookup, request, records)

    def _looks_in_l2(self) -> bool:
        return self._prefetch.active and not (self._freeze.refuses == FROZEN and self._freeze.lasts())

    # --- answering

    def result(self, connection: bytes, request_id: str, *, sparse: bool) -> Any:
        """The answer, once; None while there is none."""
        with self._lock:
            lookup = self._table.find(connection, request_id)
            if lookup is None or lookup.given or lookup.sparse is not sparse:
                return _nothing(sparse)
            lookup.given = lookup.answer is not None
            return lookup.answer

    def expected(self, connection: bytes, request_id: str) -> int | None:
        """See `Storage.expected_hits`."""
        with self._lock:
            lookup = self._table.find(connection, request_id)
        if lookup is None or lookup.sparse:
            return 0
        if lookup.answer is None:
            return lookup.prefetch.expected if lookup.prefetch else None
        return lookup.hit_chunks

    def on_result(self, connection: bytes, request_id: str, function: Callable[[Any], bool], *, sparse: bool) -> None:
        with self._lock:
            lookup = self._table.find(connection, request_id)
            known = lookup is not None and not lookup.given and lookup.sparse is sparse
            if lookup is not None and known and lookup.answer is None:
                lookup.waiters.append(function)
                return
        if lookup is None or not known:
            function(_nothing(sparse))
        else:
            lookup.given = function(lookup.answer)

    # --- holding

    def claim(self, request_id: str, space: KeySpace, first_chunk: int, slots: Sequence[int]) -> bool:
        """A worker of this request holds these now: it takes over what lookups of the request hold of them.  False when
        there is no such lookup."""
        with self._lock:
            lookups = self._table.for_request(request_id)
            if not lookups:
                return False
            if len(lookups) > 1:
                lookups = [lookup for lookup in lookups if lookup.holds_any(space, slots)]
            # Engines may choose the same id.  Where several reference these, it is not known whose worker this is, and a read
            # that were counted at the wrong one would release what the other is still to read: each then keeps its
            # holds until its request is over.
            lookup = lookups[0] if len(lookups) == 1 else None
            spent = lookup.claim(space, first_chunk, slots) if lookup else []
        if lookup and spent:
            self._release(lookup, spent)
        return True

    def free(self, connection: bytes, request_id: str, first_chunk: int, end_chunk: int) -> None:
        with self._lock:
            lookup = self._table.find(connection, request_id)
            spent = lookup.release_range(first_chunk, end_chunk) if lookup else []
        if lookup and spent:
            self._release(lookup, spent)

    def end(self, connection: bytes, request_id: str) -> None:
        with self._lock:
            lookup = self._table.pop(connection, request_id)
        if lookup:
            self._close(lookup)

    def renew(self, connection: bytes) -> None:
        now = self._clock.monotonic()
        with self._lock:
            lookups = self._table.for_connection(connection)
        for lookup in lookups:
            # Not for ever: an engine that was cut off for a while forgets requests without a word.
            self._cache.leases.renew(
                lookup.lease, min(now, lookup.started_at + LOOKUP_AGE_MAX_SECONDS) + self._read_ttl
            )

    def expire(self) -> None:
        """Forget lookups whose lease has run out, and those that should long have been answered."""
        stuck = self._clock.monotonic() - self._prefetch.lookup_timeout_seconds - STUCK_SECONDS
        with self._lock:
            lookups = self._table.everything()
            overdue = [lookup for lookup in lookups if lookup.answer is None and lookup.started_at <= stuck]
            over = [lookup for lookup in lookups if lookup.lease.state is LeaseState.ENDED]
        for lookup in overdue:
            logger.error("lookup was not answered in time, it counts as a miss request=%s", lookup.request_id)
        for lookup in dict.fromkeys((*overdue, *over)):
            self._drop(lookup)

    def facts(self, request_id: str) -> RequestFacts:
        """What the open lookups of a request say about it; where engines share the id, the latest."""
        now = self._clock.monotonic()
        with self._lock:
            lookups = self._table.for_request(request_id)
            return lookups[-1].facts(now) if lookups else RequestFacts(now, request_number(request_id))

    # --- inside

    def _go_on_in_l2(self, lookup: Lookup, request: LookupRequest, records: Sequence[tuple[SpaceRecord, ...]]) -> None:
        prefetch = Prefetch(
            request_id=lookup.request_id,
            lease=lookup.lease,
            rows=[
                PrefetchRow(row.slots, of_row, window)
                for row, of_row, window in zip(lookup.rows, records, lookup.windows, strict=True)
            ],
            chunk_hashes=request.chunk_hashes,
            on_done=lambda match, _: self._finish(lookup, match),
            started=lookup.started_at,
            request=lookup.facts(lookup.started_at),
            sparse=lookup.sparse,
        )
        lookup.prefetch = prefetch
        self._prefetch.submit(prefetch)

    def _finish(self, lookup: Lookup, match: PrefixMatch) -> None:
        with self._lock:
            if lookup.over or lookup.lease.state is not LeaseState.ACTIVE or lookup.answer is not None:
                return  # it was replaced or ended meanwhile, and answered then
            rest = lookup.set_answer(match)
            waiters, lookup.waiters = lookup.waiters, []
        now = self._clock.monotonic()
        seconds = now - lookup.started_at
        self._counters.answered(lookup, seconds)
        if rest:
            self._release(lookup, rest)
        if waiters and notify(waiters, match.answer, lookup.request_id):
            lookup.given = True
        self._hits.notify(lookup, now)
        if self._events.wants(LookupFinished):
            self._events.publish(lookup.finished(seconds))

    def _release(self, lookup: Lookup, slots: list[int]) -> None:
        self._cache.leases.release(lookup.lease, slots)
        if lookup.prefetch:
            self._prefetch.look_again(lookup.prefetch)

    def _close(self, lookup: Lookup) -> None:
        """It is in the table no more."""
        with self._lock:
            waiters, lookup.waiters = lookup.waiters, []
            is_abandoned = lookup.answer is None and not lookup.over
            lookup.over = True
        if is_abandoned:
            self._counters.abandoned(lookup.prompt)
            self._events.publish(lookup.abandoned(self._clock.monotonic() - lookup.started_at))
        self._cache.leases.end(lookup.lease)
        if lookup.prefetch:
            self._prefetch.look_again(lookup.prefetch)
        notify(waiters, _nothing(lookup.sparse), lookup.request_id)

    def _drop(self, lookup: Lookup) -> None:
        """Forget this very lookup, and with it the request; where it has a newer one, that stays, and it goes on."""
        with self._lock:
            is_last = self._table.find(lookup.connection, lookup.request_id) is lookup
            if is_last:
                self._table.pop(lookup.connection, lookup.request_id)
        self._close(lookup)
        if is_last and self._events.wants(RequestEnded):
            self._events.publish(RequestEnded(lookup.request_id, incomplete=True))


def _match_in_l1(lookup: Lookup) -> PrefixMatch:
    """What L1 has of the lookup."""
    rows, chunks = lookup.rows, lookup.prompt_chunks
    if rows and not lookup.sparse and all(row.in_l1 is row.slots for row in rows):
        if any(lookup.windows):
            return prefix_of(chunks, lookup.windows)
        return PrefixMatch(chunks, (range(chunks),) * len(rows))  # most lookups
    flags = [bytearray([slot != ABSENT for slot in row.slots]) for row in rows]
    return match_of(flags, lookup.windows, chunks, sparse=lookup.sparse)


def _nothing(sparse: bool) -> int | Bitmap:
    """The answer of a lookup that is over or was never heard of."""
    return Bitmap(0) if sparse else 0
