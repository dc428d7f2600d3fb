"""Lookups: which prefix of a prompt is there, held for the request until its workers have read it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lmcache_core.contracts.operation import DEFERRED, Call, Handler, HandlerMode
from lmcache_core.contracts.request_module import ModuleContext, RequestModule, SpaceFields
from lmcache_core.contracts.settings import PluginSettings
from lmcache_core.contracts.storage import READERS_MAX, LookupRequest, Shard
from lmcache_core.model.errors import ProtocolError
from lmcache_core.model.keys import pack_kv_rank
from lmcache_core.wire.messages import EngineKey
from lmcache_core.wire.operations import (
    END_SESSION,
    FREE_LOOKUP_LOCKS,
    LOOKUP,
    QUERY_PREFETCH_STATUS,
    WAIT_PREFETCH_STATUS,
)

WAIT_MAX_SECONDS = 300.0
"""Longest that a client may ask to wait for a lookup."""


class LookupModule(RequestModule):
    """A request's operations run in the order in which its connection sent them."""

    def __init__(self, context: ModuleContext) -> None:
        self._context = context

    def handlers(self) -> Sequence[Handler]:
        return [
            Handler(LOOKUP, self.lookup, HandlerMode.ORDERED),
            Handler(QUERY_PREFETCH_STATUS, self.query, HandlerMode.INLINE),
            Handler(WAIT_PREFETCH_STATUS, self.wait, HandlerMode.ORDERED),
            Handler(FREE_LOOKUP_LOCKS, self.free, HandlerMode.ORDERED),
            Handler(END_SESSION, self.end_session, HandlerMode.ORDERED),
        ]

    def lookup(self, call: Call, key: EngineKey, tp_size: int) -> None:
        """`tp_size` is a relic of older clients; the key says how many reads to expect."""
        context = self._context
        pack_kv_rank(key.world_size, 0)  # refuses a world that has no shard numbers
        if not 0 <= key.num_kv_readers <= READERS_MAX:
            raise ProtocolError(f"num_kv_readers is {key.num_kv_readers}; 0 to {READERS_MAX} workers may read a shard")
        shards = self._shards(key) if context.admits_salt(key.cache_salt) else ()
        hashes = context.hasher.chunk_hashes(key.request_id, key.token_ids, key.end) if shards else []
        context.storage.lookup(
            LookupRequest(call.connection, key.request_id, shards, hashes, readers=key.num_kv_readers)
        )

    def query(self, call: Call, request_id: str) -> int | None:
        return self._context.storage.lookup_result(call.connection, request_id)

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
        self._context.storage.end_lookup(call.connection, request_id)
        self._context.hasher.end_session(request_id)

    def _shards(self, key: EngineKey) -> tuple[Shard, ...]:
        """What a chunk must be there for; nothing when no worker could read it."""
        fields = SpaceFields(key.model_name, key.cache_salt)
        shards: list[Shard] = []
        for worker_id in range(key.world_size):
            layouts, every = self._context.workers.layouts(key.model_name, key.world_size, worker_id)
            if not layouts:
                return ()
            rank = pack_kv_rank(key.world_size, worker_id)
            spaces = tuple(self._context.space(fields, rank, layout) for layout in layouts)
            shards += [Shard((space,)) for space in spaces] if every else [Shard(spaces)]
        return tuple(shards)


def open_lookup(settings: PluginSettings | None, context: ModuleContext) -> LookupModule:
    return LookupModule(context)
