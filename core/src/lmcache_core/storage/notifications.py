"""Notifications of lookups and transfers: events for subscribers, accesses for policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.events import (
    ChunksRetrieved,
    ChunksStored,
    LookupAbandoned,
    LookupFinished,
    LookupHashes,
    LookupStarted,
    ObjectsCame,
    ObjectsRead,
    Publisher,
    StoreRefused,
)
from lmcache_core.contracts.policies import AccessFacts, RequestFacts
from lmcache_core.contracts.storage import LookupRequest, PromptFacts, Shard, SparseLookupRequest
from lmcache_core.controllers.store import StoreController
from lmcache_core.controllers.store_units import Batch
from lmcache_core.l1.cache import L1Cache
from lmcache_core.l1.index import SpaceRecord
from lmcache_core.model.keys import KeySpace
from lmcache_core.model.object_header import HEADER_BYTES
from lmcache_core.storage.counters import Tallies, tenant_of
from lmcache_core.storage.open_lookups import Lookup


class LookupNews:
    """Each lookup is told of twice: when it starts, and when it has its answer or will never have one.  Any thread."""

    def __init__(self, events: Publisher) -> None:
        self._events = events

    def began(self, lookup: Lookup, chunk_hashes: Sequence[bytes]) -> None:
        events, prompt = self._events, lookup.prompt
        if events.wants(LookupStarted):
            events.publish(
                LookupStarted(
                    lookup.request_id,
                    prompt.model_name,
                    prompt.cache_salt,
                    prompt.tokens,
                    prompt.chunks,
                    prompt.trace_context,
                )
            )
        if chunk_hashes and events.wants(LookupHashes):
            events.publish(
                LookupHashes(
                    lookup.request_id,
                    prompt.model_name,
                    prompt.cache_salt,
                    prompt.world_size,
                    prompt.tokens,
                    b"".join(chunk_hashes),
                )
            )

    def answered(self, lookup: Lookup, seconds: float) -> None:
        prompt = lookup.prompt
        if self._events.wants(LookupFinished):
            self._events.publish(
                LookupFinished(
                    lookup.request_id,
                    prompt.model_name,
                    prompt.cache_salt,
                    prompt.chunks,
                    lookup.hit_chunks,
                    lookup.l2_chunks,
                    seconds,
                    prompt.tokens,
                    prompt.trace_context,
                )
            )

    def abandoned(self, lookup: Lookup, seconds: float) -> None:
        prompt = lookup.prompt
        self._events.publish(
            LookupAbandoned(
                lookup.request_id, prompt.model_name, prompt.cache_salt, prompt.tokens, prompt.chunks, seconds
            )
        )


def prompt_of(request: LookupRequest | SparseLookupRequest) -> tuple[PromptFacts, int]:
    """What the request says of its prompt, or where it says nothing or less than it asks for, what follows from its shards
    and hashes; and the tokens of a chunk, 0 where there is no shard and so nothing to be found."""
    prompt, chunks = request.prompt, len(request.chunk_hashes)
    space = _first_space(request.shards)
    chunk_tokens = space.chunk_tokens if space else 0
    tokens = chunks * chunk_tokens
    if prompt is None:
        model_name, salt = (space.model_name, space.cache_salt) if space else ("", "")
        prompt = PromptFacts(model_name, salt, len(request.shards), tokens, chunks)
    elif prompt.chunks < chunks or prompt.tokens < tokens:
        prompt = replace(prompt, chunks=max(prompt.chunks, chunks), tokens=max(prompt.tokens, tokens))
    return prompt, chunk_tokens


def _first_space(shards: Sequence[Shard]) -> KeySpace | None:
    for shard in shards:
        if shard.spaces:
            return shard.spaces[0].space
    return None


NO_ROOM, QUOTA, TOO_MANY, STOPPING = "no_room", "quota", "too_many_transfers", "stopping"
MISSING, OVERWRITTEN = "missing", "overwritten"


class TransferNews:
    """Any thread."""

    def __init__(self, cache: L1Cache, tallies: Tallies, clock: Clock, events: Publisher) -> None:
        self._cache = cache
        self._tallies = tallies
        self._clock = clock
        self._events = events

    # --- retrieves

    def given(
        self, space: KeySpace, payload_bytes: int, chunk_hashes: Sequence[bytes], first_chunk: int, request_id: str
    ) -> None:
        """A worker may read these now."""
        chunks = len(chunk_hashes)
        self._tallies.retrieved(tenant_of(space.model_name, space.cache_salt), chunks, chunks * payload_bytes)
        if self._events.wants(ObjectsRead):
            self._events.publish(
                ObjectsRead(
                    space.model_name,
                    space.cache_salt,
                    space.kv_rank,
                    request_id,
                    first_chunk,
                    b"".join(chunk_hashes),
                )
            )

    def unread(self, space: KeySpace, chunks: int, reason: str) -> None:
        """It was not given what it wants to read."""
        self._tallies.unread(tenant_of(space.model_name, space.cache_salt), chunks, reason)

    def read(self, record: SpaceRecord, chunks: int, first_chunk: int, request_id: str, begun: float) -> None:
        """It has read what it was given."""
        if not self._events.wants(ChunksRetrieved):
            return
        space, seconds = record.space, self._clock.monotonic() - begun
        self._events.publish(
            ChunksRetrieved(
                space.model_name,
                space.cache_salt,
                space.kv_rank,
                chunks,
                chunks * record.payload_bytes,
                request_id,
                first_chunk,
                seconds,
            )
        )

    # --- stores

    def refused(self, space: KeySpace, payload_bytes: int, chunks: int, reason: str) -> None:
        """So many chunks were not taken."""
        self._tallies.refused(tenant_of(space.model_name, space.cache_salt), chunks, chunks * payload_bytes, reason)
        self._events.publish(StoreRefused(space.model_name, space.cache_salt, chunks, reason))

    def late(self, space: KeySpace) -> None:
        """A worker committed what it holds no more."""
        self._tallies.stored_late(tenant_of(space.model_name, space.cache_salt))

    def hashes_to_tell(self, slots: Sequence[int]) -> bytes:
        """Of slots that are held and about to be published; empty where nobody wants to know."""
        if not self._events.wants(ObjectsCame):
            return b""
        return b"".join([self._cache.key_of(slot).chunk_hash for slot in slots])

    def stored(
        self, record: SpaceRecord, chunks: int, first_chunk: int, request_id: str, begun: float, hashes: bytes
    ) -> None:
        """These were published.  `hashes` is what `hashes_to_tell` gave."""
        space, size = record.space, chunks * record.payload_bytes
        self._tallies.stored(tenant_of(space.model_name, space.cache_salt), chunks, size)
        if self._events.wants(ChunksStored):
            self._events.publish(
                ChunksStored(
                    space.model_name,
                    space.cache_salt,
                    space.kv_rank,
                    chunks,
                    size,
                    request_id,
                    first_chunk,
                    self._clock.monotonic() - begun,
                )
            )
        if hashes:
            self._events.publish(
                ObjectsCame(
                    space.model_name,
                    space.cache_salt,
                    space.kv_rank,
                    HEADER_BYTES + record.payload_bytes,
                    "worker",
                    request_id,
                    first_chunk,
                    hashes,
                )
            )


class AccessNotes:
    """Safe from any thread, as its cache and store controller are."""

    def __init__(self, cache: L1Cache, store: StoreController) -> None:
        self._cache = cache
        self._store = store
        self._offers = True

    def offer_no_more(self) -> None:
        """From now on nothing is offered to the store policy."""
        self._offers = False

    def hits(self, lookup: Lookup, seconds: float) -> None:
        """A lookup has its answer.  Policies hear of each hit in L1 once per request: engines repeat lookups while they
        queue."""
        first, lookup.noted_chunks = lookup.noted_chunks, max(lookup.noted_chunks, lookup.hit_chunks)
        facts = AccessFacts(first, lookup.facts(seconds))
        for row in lookup.rows:
            hit = row.take_hits(first)
            self._cache.log_access(hit, facts)
            if hit and self._offers and self._store.plans_hits:
                self._offer(lookup, hit, row.positions(), facts.request)

    def read_unasked(self, slots: Sequence[int], first_chunk: int, request: RequestFacts) -> None:
        """A worker reads what no lookup of its request has told of."""
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
