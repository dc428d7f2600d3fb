"""What engines asked for and got, counted exactly for each model and cache salt.

Events may be dropped on their way to a subscriber; these counts are changed where the thing happens.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache

from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.counts import OTHER_TENANT, TENANTS_MAX, Tenant, TenantCounts
from lmcache_core.contracts.events import (
    ChunksRetrieved,
    ChunksStored,
    ObjectsAdded,
    ObjectsRead,
    Publisher,
    StoreRefused,
)
from lmcache_core.contracts.samples import Durations
from lmcache_core.contracts.storage import PromptFacts
from lmcache_core.l1.cache import L1Cache
from lmcache_core.l1.index import SpaceRecord
from lmcache_core.model.keys import KeySpace
from lmcache_core.model.names import parse_model_name
from lmcache_core.model.object_header import HEADER_BYTES
from lmcache_core.storage.open_lookups import Lookup


@lru_cache(4 * TENANTS_MAX)
def tenant_of(model_name: str, cache_salt: str) -> Tenant:
    """Whose row a request counts in.  Engines and adapters of one served name count together: requests may have any number of
    names, and rows are kept."""
    return parse_model_name(model_name).served, cache_salt


class Counters:
    """Safe from any thread.  Each change is complete when it is seen, and takes the same time however many rows there
    are."""

    def __init__(self, pairs_max: int = TENANTS_MAX) -> None:
        self._pairs_max = pairs_max
        self._lock = threading.Lock()  # guards all below
        self._rows: dict[Tenant, TenantCounts] = {}

    def answered(self, lookup: Lookup, seconds: float) -> None:
        """A lookup has its answer, `seconds` after it began."""
        prompt, chunk_tokens = lookup.prompt, lookup.chunk_tokens
        hit, from_l2 = lookup.hit_chunks, lookup.l2_chunks
        from_l1 = hit - from_l2
        tier = "l2" if from_l2 else "l1" if hit else "none"
        with self._lock:
            row = self._rows.get(tenant_of(prompt.model_name, prompt.cache_salt)) or self._row(prompt)
            row.lookups += 1
            (row.lookup_times.get(tier) or row.lookup_times.setdefault(tier, Durations())).count(seconds)
            row.requested_chunks += prompt.chunks
            row.requested_tokens += prompt.tokens
            if from_l1:
                row.hit_l1_chunks += from_l1
                row.hit_l1_tokens += from_l1 * chunk_tokens
            if from_l2:
                row.hit_l2_chunks += from_l2
                row.hit_l2_tokens += from_l2 * chunk_tokens
            if hit:
                row.hit_l1_objects += lookup.held_objects - lookup.l2_objects
                row.hit_l2_objects += lookup.l2_objects
            if prompt.miss_reason:
                row.early_exits[prompt.miss_reason] += 1

    def abandoned(self, prompt: PromptFacts) -> None:
        """A lookup will never have an answer."""
        with self._lock:
            self._row(prompt).abandoned += 1

    def stored(self, space: KeySpace, chunks: int, size: int) -> None:
        with self._lock:
            row = self._row(space)
            row.stores += 1
            row.stored_chunks += chunks
            row.stored_bytes += size

    def stored_late(self, space: KeySpace) -> None:
        """A worker committed a transfer whose lease has ended."""
        with self._lock:
            self._row(space).stores_late += 1

    def refused(self, space: KeySpace, chunks: int, size: int, reason: str) -> None:
        with self._lock:
            row = self._row(space)
            row.refused_chunks[reason] += chunks
            row.refused_bytes[reason] += size

    def retrieved(self, space: KeySpace, chunks: int, size: int) -> None:
        with self._lock:
            row = self._row(space)
            row.retrieves += 1
            row.retrieved_chunks += chunks
            row.retrieved_bytes += size

    def unread(self, space: KeySpace, chunks: int, reason: str) -> None:
        """A worker was not given what it wants to read."""
        with self._lock:
            self._row(space).unread_chunks[reason] += chunks

    def snapshot(self) -> dict[Tenant, TenantCounts]:
        """Copies of all rows, each of one moment; the lock is released between them."""
        with self._lock:
            tenants = list(self._rows)
        copies = {}
        for tenant in tenants:
            with self._lock:
                copies[tenant] = self._rows[tenant].copy()
        return copies

    def _row(self, named: KeySpace | PromptFacts) -> TenantCounts:
        tenant = tenant_of(named.model_name, named.cache_salt)
        row = self._rows.get(tenant)
        if row is None:
            if len(self._rows) >= self._pairs_max:
                tenant = (OTHER_TENANT, OTHER_TENANT)
            row = self._rows.setdefault(tenant, TenantCounts())
        return row


def total(rows: Mapping[Tenant, TenantCounts]) -> TenantCounts:
    """All rows together."""
    whole = TenantCounts()
    for row in rows.values():
        whole.add(row)
    return whole


NO_ROOM, QUOTA, TOO_MANY, FROZEN, STOPPING = "no_room", "quota", "too_many_transfers", "frozen", "stopping"
MISSING, OVERWRITTEN = "missing", "overwritten"


class TransferEvents:
    """Any thread."""

    def __init__(self, cache: L1Cache, counters: Counters, clock: Clock, events: Publisher) -> None:
        self._cache = cache
        self._counters = counters
        self._clock = clock
        self._events = events

    # --- retrieves

    def acquired(
        self, space: KeySpace, payload_bytes: int, chunk_hashes: Sequence[bytes], first_chunk: int, request_id: str
    ) -> None:
        """A worker may read these now."""
        chunks = len(chunk_hashes)
        self._counters.retrieved(space, chunks, chunks * payload_bytes)
        if self._events.wants(ObjectsRead):
            self._events.publish(ObjectsRead(*_names(space), request_id, first_chunk, b"".join(chunk_hashes)))

    def released(self, record: SpaceRecord, chunks: int, first_chunk: int, request_id: str, started: float) -> None:
        """It has read what it was given."""
        if not self._events.wants(ChunksRetrieved):
            return
        space, seconds = record.space, self._clock.monotonic() - started
        self._events.publish(
            ChunksRetrieved(*_names(space), chunks, chunks * record.payload_bytes, request_id, first_chunk, seconds)
        )

    # --- stores

    def refused(self, space: KeySpace, payload_bytes: int, chunks: int, reason: str) -> None:
        """Chunks were not taken."""
        self._counters.refused(space, chunks, chunks * payload_bytes, reason)
        self._events.publish(StoreRefused(space.model_name, space.cache_salt, chunks, reason))

    def hashes_to_publish(self, slots: Sequence[int]) -> bytes:
        """Of referenced slots that are about to be published; empty where no subscriber wants them."""
        if not self._events.wants(ObjectsAdded):
            return b""
        return b"".join([self._cache.key_of(slot).chunk_hash for slot in slots])

    def stored(
        self, record: SpaceRecord, chunks: int, first_chunk: int, request_id: str, started: float, hashes: bytes
    ) -> None:
        """These were published.  `hashes` is what `hashes_to_publish` gave."""
        space, size = record.space, chunks * record.payload_bytes
        self._counters.stored(space, chunks, size)
        if self._events.wants(ChunksStored):
            self._events.publish(
                ChunksStored(*_names(space), chunks, size, request_id, first_chunk, self._clock.monotonic() - started)
            )
        if hashes:
            self._events.publish(
                ObjectsAdded(
                    *_names(space), HEADER_BYTES + record.payload_bytes, "worker", request_id, first_chunk, hashes
                )
            )


def _names(space: KeySpace) -> tuple[str, str, int]:
    """What events say of a key space."""
    return space.model_name, space.cache_salt, space.kv_rank
