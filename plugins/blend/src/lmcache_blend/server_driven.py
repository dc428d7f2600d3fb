"""The requests `cb_...`: engines whose pages the server fills ask what is there, and have it moved."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from lmcache_blend.messages import (
    HANDSHAKE,
    NOT_MOVED,
    NOTHING_FOUND,
    PROTOCOL_VERSION,
    REGISTER_ROPE,
    REGISTER_ROPE_V3,
    REORDER_PLAN,
    RETRIEVE,
    RETRIEVE_V3,
    UNIFIED_LOOKUP,
    UNREGISTER_ROPE,
    UNREGISTER_ROPE_V3,
    Found,
)
from lmcache_client import BlendMatch, BlendSegment, RopeTables
from lmcache_client.engine_key import TokenSequence
from lmcache_core import (
    Call,
    EngineKey,
    Handler,
    HandlerMode,
    ModuleContext,
    PageMover,
    ProtocolError,
    SlotReferences,
    Worker,
    transfer_range,
)

if TYPE_CHECKING:
    from lmcache_blend.module import BlendModule, Prompt

INDEX_SECONDS: Final = 1.0
"""That a lookup waits for the index which others use."""
PENDING_MAX: Final = 8192
PENDING_TOKENS_MAX: Final = 32 << 20
PENDING_SECONDS: Final = 600.0
"""Lookups whose answer was not fetched, tokens of their prompts (up to 5 bytes each), and for how long; others begin anew when
they are asked again."""


class ServerDriven:
    """Safe from any thread."""

    def __init__(self, module: BlendModule, context: ModuleContext) -> None:
        self._module, self._context = module, context
        self._lock = threading.Lock()
        self._pending: OrderedDict[tuple[bytes, str], tuple[Prompt, float]] = OrderedDict()
        self._pending_tokens = 0
        """By connection and request id, and when each was asked last."""

    def handlers(self) -> Sequence[Handler]:
        handler = self._module.handler
        return [
            Handler(HANDSHAKE, self.handshake, HandlerMode.INLINE),
            *[handler(each, self.register_rope, may_be_refused=False) for each in (REGISTER_ROPE, REGISTER_ROPE_V3)],
            *[
                handler(each, self.unregister_rope, may_be_refused=False)
                for each in (UNREGISTER_ROPE, UNREGISTER_ROPE_V3)
            ],
            handler(UNIFIED_LOOKUP, self.lookup),
            *[handler(each, self.retrieve) for each in (RETRIEVE, RETRIEVE_V3)],
            Handler(REORDER_PLAN, self.reorder_plan, HandlerMode.POOLED),
        ]

    def handshake(self, call: Call, client_version: int) -> tuple[int, bool]:
        """Not compatible where nothing here can move tokens, either."""
        return PROTOCOL_VERSION, client_version == PROTOCOL_VERSION and bool(self._context.page_movers)

    def register_rope(
        self,
        call: Call,
        instance_id: int,
        cos_sin: list[msgspec.msgpack.Ext],
        head_size: int,
        is_neox: bool,
        group_to_cache: list[int],
        group_rot: list[list[int]],
        group_head_size: list[int],
        kv_quant: str,
    ) -> None:
        """There is no answer but an empty one, also for what is refused: its matches are then not moved."""
        if kv_quant:
            raise ProtocolError(f"K that is quantized ('{kv_quant[:40]}') cannot be turned")
        worker = self._context.workers.find(instance_id)
        if worker is None:
            raise ProtocolError(
                f"instance {instance_id} is not registered: register_kv_cache comes before its rope, and layers with one row "
                "for each token, as of latent attention (MLA), are not blended"
            )
        rope = RopeTables(cos_sin, head_size, is_neox, group_to_cache, group_rot, group_head_size)
        self._mover_for(worker, call).share_rope(worker, rope)

    def unregister_rope(self, call: Call, instance_id: int) -> None:
        worker = self._context.workers.find(instance_id)
        if worker is not None:
            self._mover_for(worker, call).drop_rope(worker)

    def lookup(self, call: Call, key: EngineKey, tp_size: int) -> Found | None:
        """None while it runs: it is asked again.  The same question after its answer is another lookup.  `tp_size` is a relic;
        the key says how many reads to expect."""
        module, name = self._module, (call.connection, key.request_id)
        with self._lock:
            prompt, _ = self._pending.pop(name, (None, 0.0))
            self._pending_tokens -= _tokens(prompt.key) if prompt else 0
        if prompt is None or prompt.key != key:
            prompt = module.begin(call.connection, key, INDEX_SECONDS)
        found = self._context.storage.sparse_result(*name)
        if found is not None and not found.size and prompt.asked:  # it has ended, or another one took its place
            prompt = module.begin(call.connection, key, INDEX_SECONDS)
            found = self._context.storage.sparse_result(*name)
        if found is None:
            self._keep(name, prompt)
            return None
        if not found.size:
            return NOTHING_FOUND
        answer = module.result(call.connection, prompt, found)
        module.answered(prompt, answer)
        segments = [
            BlendMatch(each.old_start, each.old_end, each.start, each.end, each.hash) for each in answer.segments
        ]
        return Found(answer.prefix_tokens, tuple(segments))

    def _keep(self, name: tuple[bytes, str], prompt: Prompt) -> None:
        now = self._context.clock.monotonic()
        with self._lock:
            pending = self._pending
            pending[name] = prompt, now
            self._pending_tokens += _tokens(prompt.key)
            while (
                len(pending) > PENDING_MAX
                or self._pending_tokens > PENDING_TOKENS_MAX
                or next(iter(pending.values()))[1] < now - PENDING_SECONDS
            ):
                _, (oldest, _) = pending.popitem(last=False)
                self._pending_tokens -= _tokens(oldest.key)

    def retrieve(
        self,
        call: Call,
        key: EngineKey,
        matches: list[BlendMatch],
        block_ids: list[list[int]],
        instance_id: int,
        event: bytes,
    ) -> tuple[bytes, bool]:
        """All matches, in any order, or nothing.  Matches of the prefix are chunks at their own place."""
        module, context = self._module, self._context
        chunks = transfer_range(context, key, instance_id)
        if chunks is None or not matches:
            return NOT_MOVED
        worker = chunks.worker
        mover = self._mover_for(worker, call)
        if len(worker.groups) != 1:
            raise ProtocolError(f"instance {instance_id} keeps a chunk in several objects, whose tokens stay together")
        own = context.hasher.chunk_hashes(key.token_ids, key.end)
        segments = sorted((self._segment(each, own) for each in matches), key=lambda each: each.start)
        known = module.check(key, own, segments)
        module.count(prepares=1)
        if len(known) < len(segments):
            module.was_read(key, instance_id, len(segments), len(segments))
            return NOT_MOVED
        held = context.storage.acquire(
            worker.token, key.request_id, chunks.space(context), [each.hash for each in segments], chunks.first_chunk
        )
        if held is None:
            module.was_read(key, instance_id, len(segments), len(segments))
            return NOT_MOVED
        places = [(each.old_start, each.start) for each in segments]
        try:
            return mover.move(worker, held, places, block_ids, event, partial(self._moved, held, key, instance_id))
        except BaseException:
            context.storage.release(held)
            raise

    def reorder_plan(self, call: Call, key: EngineKey, keep_prefix: int, budget_ms: int) -> list[int]:
        """Prompts are not rewritten."""
        return []

    def _segment(self, match: BlendMatch, own: Sequence[bytes]) -> BlendSegment:
        at, rest = divmod(match.cur_st, self._context.chunk_tokens)
        is_own = not rest and match.old_st == match.cur_st and own[at : at + 1] == [match.hash]
        return BlendSegment(match.old_st, match.old_ed, match.cur_st, match.cur_ed, match.hash, exact=is_own)

    def _moved(self, held: SlotReferences, key: EngineKey, instance_id: int, arrived: bool) -> bool:
        self._context.storage.release(held)
        segments = len(held.slots)
        self._module.was_read(key, instance_id, segments, 0 if arrived else segments)
        self._module.count(moved_tokens=segments * self._context.chunk_tokens if arrived else 0)
        return arrived

    def _mover_for(self, worker: Worker, call: Call) -> PageMover:
        """Raises ProtocolError where there is none, or the worker is that of another process."""
        if not self._context.page_movers:
            raise ProtocolError(
                "nothing here moves tokens into an engine's pages; install lmcache-transfer-torch, and start the server with "
                "--supported-transfer-mode auto or lmcache_driven"
            )
        (mover, *_) = self._context.page_movers
        mover.check_connection(worker, call.connection)
        return mover


def _tokens(key: EngineKey) -> int:
    return key.token_ids.count if isinstance(key.token_ids, TokenSequence) else 0
