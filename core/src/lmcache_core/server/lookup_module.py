"""Lookups: which prefix of a prompt is there, held for the request until its workers have read it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lmcache_client.engine_key import EngineKey, TokenSequence
from lmcache_client.errors import ProtocolError
from lmcache_client.operations import (
    END_SESSION,
    FREE_LOOKUP_LOCKS,
    LOOKUP,
    QUERY_PREFETCH_LOOKUP_HITS,
    QUERY_PREFETCH_STATUS,
    WAIT_PREFETCH_STATUS,
)
from lmcache_core.contracts.operation import DEFERRED, Call, Handler, HandlerMode
from lmcache_core.contracts.request_module import SPACES_REMEMBERED, ModuleContext, RequestModule, SpaceFields
from lmcache_core.contracts.settings import PluginSettings
from lmcache_core.contracts.storage import LookupRequest, PromptFacts, Shard
from lmcache_core.server.registrations import registered_shards
from lmcache_core.server.request_fields import check_lookup_key, check_request_id, trace_context

NO_WORKER, UNSALTED = "no_worker", "unsalted"
"""Why a lookup can find nothing: no worker of its model is registered, or its salt is not served."""
WAIT_MAX_SECONDS = 300.0
"""Longest that a client may ask to wait for a lookup."""


class LookupModule(RequestModule):
    """A request's operations run in the order in which its connection sent them."""

    def __init__(self, context: ModuleContext) -> None:
        self._context = context
        self._shards: dict[tuple[str, str, int], tuple[int, tuple[Shard, ...]]] = {}
        """By model name, salt and world size: the shards, and the revision of the registrations that they follow from."""

    def handlers(self) -> Sequence[Handler]:
        return [
            Handler(LOOKUP, self.lookup, HandlerMode.ORDERED),
            Handler(QUERY_PREFETCH_STATUS, self.query, HandlerMode.INLINE),
            Handler(QUERY_PREFETCH_LOOKUP_HITS, self.expected, HandlerMode.INLINE),
            Handler(WAIT_PREFETCH_STATUS, self.wait, HandlerMode.ORDERED),
            Handler(FREE_LOOKUP_LOCKS, self.free, HandlerMode.ORDERED, may_be_refused=False),
            Handler(END_SESSION, self.end_session, HandlerMode.ORDERED, may_be_refused=False),
        ]

    def lookup(self, call: Call, key: EngineKey, tp_size: int) -> None:
        """`tp_size` is a relic of older clients; the key says how many reads to expect."""
        context = self._context
        check_lookup_key(key)
        tokens = key.token_ids.count if isinstance(key.token_ids, TokenSequence) else key.end
        admitted = context.admits_salt(key.cache_salt)
        identity = key.model_name, key.cache_salt, key.world_size
        revision, shards = self._shards.get(identity, (-1, ())) if admitted else (-1, ())
        if admitted and revision != context.workers.revision:
            shards = self._registered_shards(*identity)
        hashes = context.hasher.chunk_hashes(key.token_ids, key.end) if shards else ()
        miss_reason = "" if shards else NO_WORKER if admitted else UNSALTED
        chunks = max(0, min(key.end, tokens)) // context.chunk_tokens
        trace = trace_context(key.request_configs) if key.request_configs else None
        facts = PromptFacts(*identity, tokens, chunks, trace, miss_reason)
        readers = key.num_kv_readers
        context.storage.lookup(LookupRequest(call.connection, key.request_id, shards, hashes, readers, facts))

    def _registered_shards(self, model_name: str, cache_salt: str, world_size: int) -> tuple[Shard, ...]:
        """What every lookup with these fields asks for until the registrations change."""
        revision = self._context.workers.revision  # first: what changes meanwhile is asked for again
        shards = registered_shards(self._context, SpaceFields(model_name, cache_salt), world_size)
        if len(self._shards) >= SPACES_REMEMBERED:
            self._shards.clear()
        if shards:
            self._shards[model_name, cache_salt, world_size] = revision, shards
        return shards

    def query(self, call: Call, request_id: str) -> int | None:
        return self._context.storage.lookup_result(call.connection, request_id)

    def expected(self, call: Call, request_id: str) -> int | None:
        return self._context.storage.expected_hits(call.connection, request_id)

    def wait(self, call: Call, request_id: str, timeout: float) -> object:
        if not math.isfinite(timeout):
            raise ProtocolError(f"a timeout is a number of seconds, not {timeout}")
        known = self._context.storage.lookup_result(call.connection, request_id)
        if known is not None or timeout <= 0:
            return known
        call.defer(min(timeout, WAIT_MAX_SECONDS), None)
        self._context.storage.on_lookup(call.connection, request_id, call.reply)
        return DEFERRED

    def free(self, call: Call, key: EngineKey, tp_size: int) -> None:
        tokens = self._context.chunk_tokens
        self._context.storage.free_lookup(call.connection, key.request_id, -(-key.start // tokens), key.end // tokens)

    def end_session(self, call: Call, request_id: str) -> None:
        check_request_id(request_id)
        self._context.storage.end_lookup(call.connection, request_id)


def open_lookup(settings: PluginSettings | None, context: ModuleContext) -> LookupModule:
    return LookupModule(context)
