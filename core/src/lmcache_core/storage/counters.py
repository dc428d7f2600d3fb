"""What engines asked for and got, counted exactly for each model and cache salt.

Events may be dropped on their way to a subscriber; these counts are changed where the thing happens.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Final, TypeAlias

from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.events import (
    ChunksRetrieved,
    ChunksStored,
    ObjectsAdded,
    ObjectsRead,
    Publisher,
    StoreRefused,
)
from lmcache_core.contracts.samples import Durations
from lmcache_core.l1.cache import L1Cache
from lmcache_core.l1.index import SpaceRecord
from lmcache_core.model.keys import KeySpace
from lmcache_core.model.names import parse_model_name
from lmcache_core.model.object_header import HEADER_BYTES
from lmcache_core.storage.open_lookups import Lookup

PAIRS_MAX: Final = 1024
"""Pairs of model and salt that are counted by themselves, as long as the server runs; what comes later is counted together.

A row without requests in a long time keeps its place.  If its counts moved to the others', the others' would grow
by what happened long ago, and every rate made of them would show it as new; if they were forgotten, sums would fall, and
rates made of sums take that for a restart.
"""
OTHER: Final = "_other"
"""Model and salt of that row."""


Tenant: TypeAlias = tuple[str, str]
"""Served model name and cache salt: whose row it is."""


@lru_cache(4 * PAIRS_MAX)
def tenant_of(model_name: str, cache_salt: str) -> Tenant:
    """Whose row a request counts in.  Engines and adapters of one served name count together: requests may have any number of
    names, and rows are kept."""
    return parse_model_name(model_name).served, cache_salt


@dataclass(slots=True)
class TenantCounts:
    """Since the server started.  A chunk of a prompt counts once, however many shards it has; stores and retrieves are of
    one shard, so that there each shard's object counts.

    A lookup counts with its answer, or as abandoned, never both.  What is missed is what was requested and not hit: it is
    not counted by itself, so that it always adds up.
    """

    lookups: int = 0
    """Answered."""
    lookup_times: dict[str, Durations] = field(default_factory=dict)
    """From the lookup to its answer, of the answered ones, by where the hit came from: `none`, `l1` or `l2`."""
    abandoned: int = 0
    """Superseded, ended or timed out before there was an answer; nothing else here counts them."""
    requested_chunks: int = 0
    hit_l1_chunks: int = 0
    hit_l2_chunks: int = 0
    """Of the hit, what L1 did not have of any shard when the lookup came."""
    requested_tokens: int = 0
    """With those of a last partial chunk, which are always missed."""
    hit_l1_tokens: int = 0
    hit_l2_tokens: int = 0
    hit_l1_objects: int = 0
    """Objects that the answers hold: one for each shard of a chunk."""
    hit_l2_objects: int = 0
    stores: int = 0
    """Commits that published chunks."""
    stores_late: int = 0
    """Commits whose slots had run out: nothing was published."""
    stored_chunks: int = 0
    stored_bytes: int = 0
    retrieves: int = 0
    """Of these, `retrieved_chunks` were given to workers to read."""
    retrieved_chunks: int = 0
    retrieved_bytes: int = 0
    early_exits: Counter[str] = field(default_factory=Counter)
    """Lookups that could find nothing, by reason; they are among `lookups`, too."""
    refused_chunks: Counter[str] = field(default_factory=Counter)
    """Not stored, by reason (`contracts.events.StoreRefused`)."""
    refused_bytes: Counter[str] = field(default_factory=Counter)
    unread_chunks: Counter[str] = field(default_factory=Counter)
    """Of retrieves that were not served, by reason: `missing`, `overwritten` or `too_many_transfers`."""

    @property
    def hit_chunks(self) -> int:
        return self.hit_l1_chunks + self.hit_l2_chunks

    @property
    def hit_tokens(self) -> int:
        return self.hit_l1_tokens + self.hit_l2_tokens

    @property
    def missed_chunks(self) -> int:
        return self.requested_chunks - self.hit_chunks

    @property
    def missed_tokens(self) -> int:
        return self.requested_tokens - self.hit_tokens

    def copy(self) -> TenantCounts:
        copied = TenantCounts()
        copied.add(self)
        return copied

    def add(self, other: TenantCounts) -> None:
        """Count what the other one counts, too."""
        for name in _NUMBERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in _BY_REASON:
            getattr(self, name).update(getattr(other, name))
        for tier, times in other.lookup_times.items():
            self.lookup_times.setdefault(tier, Durations()).add(times)


_BY_REASON: Final = ("early_exits", "refused_chunks", "refused_bytes", "unread_chunks")
_NUMBERS: Final = tuple(item.name for item in fields(TenantCounts) if item.name not in (*_BY_REASON, "lookup_times"))


class Counters:
    """Safe from any thread.  Each change is complete when it is seen, and takes the same time however many rows there
    are."""

    def __init__(self, pairs_max: int = PAIRS_MAX) -> None:
        self._pairs_max = pairs_max
        self._lock = threading.Lock()  # guards all below
        self._rows: dict[Tenant, TenantCounts] = {}

    def answered(self, lookup: Lookup, seconds: float) -> None:
        """A lookup has its answer, `seconds` after it began."""
        prompt, chunk_tokens = lookup.prompt, lookup.chunk_tokens
        tenant = tenant_of(prompt.model_name, prompt.cache_salt)
        hit, from_l2 = lookup.hit_chunks, lookup.l2_chunks
        from_l1 = hit - from_l2
        tier = "l2" if from_l2 else "l1" if hit else "none"
        with self._lock:
            row = self._rows.get(tenant) or self._row(tenant)
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

    def abandoned(self, tenant: Tenant) -> None:
        """A lookup will never have an answer."""
        with self._lock:
            self._row(tenant).abandoned += 1

    def stored(self, tenant: Tenant, chunks: int, size: int) -> None:
        with self._lock:
            row = self._rows.get(tenant) or self._row(tenant)
            row.stores += 1
            row.stored_chunks += chunks
            row.stored_bytes += size

    def stored_late(self, tenant: Tenant) -> None:
        with self._lock:
            self._row(tenant).stores_late += 1

    def refused(self, tenant: Tenant, chunks: int, size: int, reason: str) -> None:
        with self._lock:
            row = self._row(tenant)
            row.refused_chunks[reason] += chunks
            row.refused_bytes[reason] += size

    def retrieved(self, tenant: Tenant, chunks: int, size: int) -> None:
        with self._lock:
            row = self._rows.get(tenant) or self._row(tenant)
            row.retrieves += 1
            row.retrieved_chunks += chunks
            row.retrieved_bytes += size

    def unread(self, tenant: Tenant, chunks: int, reason: str) -> None:
        """A retrieve was not served."""
        with self._lock:
            self._row(tenant).unread_chunks[reason] += chunks

    def snapshot(self) -> dict[Tenant, TenantCounts]:
        """Copies of all rows, each of one moment; the lock is released between them."""
        with self._lock:
            tenants = list(self._rows)
        copies = {}
        for tenant in tenants:
            with self._lock:
                copies[tenant] = self._rows[tenant].copy()
        return copies

    def _row(self, tenant: Tenant) -> TenantCounts:
        row = self._rows.get(tenant)
        if row is None:
            if len(self._rows) >= self._pairs_max:
                tenant = (OTHER, OTHER)
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
        self._counters.retrieved(tenant_of(space.model_name, space.cache_salt), chunks, chunks * payload_bytes)
        if self._events.wants(ObjectsRead):
            self._events.publish(ObjectsRead(*_names(space), request_id, first_chunk, b"".join(chunk_hashes)))

    def unread(self, space: KeySpace, chunks: int, reason: str) -> None:
        """It was not given what it wants to read."""
        self._counters.unread(tenant_of(space.model_name, space.cache_salt), chunks, reason)

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
        self._counters.refused(tenant_of(space.model_name, space.cache_salt), chunks, chunks * payload_bytes, reason)
        self._events.publish(StoreRefused(space.model_name, space.cache_salt, chunks, reason))

    def late(self, space: KeySpace) -> None:
        """A worker committed what it holds no more."""
        self._counters.stored_late(tenant_of(space.model_name, space.cache_salt))

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
        self._counters.stored(tenant_of(space.model_name, space.cache_salt), chunks, size)
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
