"""The operations of blending: what is there of a prompt, wherever it was stored, and where its bytes lie."""

from __future__ import annotations

import math
import threading
from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial, wraps
from typing import Final, NamedTuple

from lmcache_blend.choice import answer_of, choose, is_own, joined, leaves_room
from lmcache_blend.events import BlendLookupAnswered, BlendRequestRefused, BlendSegmentsRead
from lmcache_blend.feed import IndexFeed
from lmcache_blend.fleet import FleetMatches
from lmcache_blend.reads import SegmentReads
from lmcache_blend.server_driven import ServerDriven
from lmcache_blend.settings import CHUNK_SIZE, BlendSettings
from lmcache_blend_index import ChunkIndex, Match
from lmcache_client import BLEND_COMMIT, BLEND_LOOKUP, BLEND_PREPARE, BlendAnswer, BlendSegment, BlendSlots
from lmcache_client.engine_key import MAX_TOKENS, PADDING, TokenSequence
from lmcache_core import (
    DEFERRED,
    Bitmap,
    Call,
    Condition,
    EngineKey,
    Handler,
    HandlerMode,
    KeySpace,
    ModuleContext,
    Operation,
    PromptFacts,
    ProtocolError,
    Refusals,
    RequestModule,
    ResidencyFeed,
    Severity,
    Shard,
    SlotDescriptor,
    SlotReferences,
    SpaceFields,
    SparseLookupRequest,
    TransferRange,
    check_lookup_key,
    check_request_id,
    registered_shards,
    transfer_range,
)

WAIT_SECONDS_MAX: Final = 300.0
MATCHED_TOKENS_MAX: Final = 1 << 20
"""Of a prompt: 0.04 s compiled, 0.6 s in Python, for which other lookups wait. What is behind is found as a prefix, or at its
own place."""
INDEX_SHARE: Final = 0.5
"""Of a lookup's seconds: how long it waits for the index that others use.  Without it, exact chunks are found."""
GIVEN_MAX: Final = 65_536
"""Segments of the latest answers that are remembered, 150 bytes each: which of them has left the index is known."""


class Prompt(NamedTuple):
    """What a lookup is about."""

    key: EngineKey
    asked: int
    """Chunks that it asks for: its own, and those chosen."""
    spaces: Sequence[KeySpace]
    """Where matches are looked for."""
    hashes: Sequence[bytes]
    """Of its own chunks."""
    matches: Sequence[Match]
    chosen: Sequence[Match]
    """Those that are asked for, behind its own chunks."""
    parents: Mapping[Match, bytes]
    """Of matches of other servers."""
    tokens: Callable[[], array[int]]
    began: float


class BlendModule(RequestModule):
    """Lookups and reads run on threads that may take long.  Safe from any thread."""

    def __init__(self, settings: BlendSettings, context: ModuleContext, journal: ResidencyFeed) -> None:
        self._context = context
        self._stride = settings.probe_stride
        self.index = ChunkIndex(context.chunk_tokens, settings.index_chunks)
        self.feed = IndexFeed(self.index, journal, context.hasher, context.clock)
        self.fleet: FleetMatches | None = None
        """Says what other servers have."""
        self._reads = SegmentReads()
        self._server_driven = ServerDriven(self, context)
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._refusals = Refusals()
        self._given: OrderedDict[int, None] = OrderedDict()
        """Segments that lookups have answered, as `_mark` has them, the oldest first."""
        context.workers.on_leave(self._reads.forget)

    def handlers(self) -> Sequence[Handler]:
        return [
            self.handler(BLEND_LOOKUP, self.lookup),
            self.handler(BLEND_PREPARE, self.prepare, may_be_refused=False),
            Handler(BLEND_COMMIT, self.commit, HandlerMode.ORDERED, may_be_refused=False),
            *self._server_driven.handlers(),
        ]

    def status(self) -> dict[str, object]:
        """Since the server started, but for `chunks`, `spaces` and `reads_prepared`."""
        return {
            **self.counts(),
            "refused": self._refusals.status(),
            "index_failure": self.feed.failure,
            "member_metadata": {CHUNK_SIZE: [str(self._context.chunk_tokens)]},
        }

    def counts(self) -> dict[str, int]:
        index, feed = self.index, self.feed
        with self._lock:
            counts = dict(self._counts)
        return {
            "chunks": len(index),
            "chunks_max": index.chunks_max,
            "chunks_added": index.added,
            "chunks_forgotten": index.evicted,
            "chunks_dropped": feed.dropped,
            "chunks_without_tokens": feed.without_tokens,
            "journal_overruns": feed.overruns,
            "unmatched": feed.unmatched,
            "reads_prepared": len(self._reads),
            **(self.fleet.counts() if self.fleet else {}),
            **counts,
        }

    def conditions(self) -> Sequence[Condition]:
        if not self.feed.failure:
            return ()
        return [
            Condition(
                "blend_index_failed",
                Severity.WARNING,
                f"no chunk is found by its tokens any more: {self.feed.failure}",
                "restart the server, and report what its log says",
            )
        ]

    def close(self) -> None:
        self.feed.close()

    # --- what a scheduler asks

    def lookup(self, call: Call, key: EngineKey, seconds: float) -> object:
        """See BLEND_LOOKUP."""
        if not math.isfinite(seconds):
            raise ProtocolError(f"a lookup waits for a number of seconds, not for {seconds}")
        seconds = min(max(seconds, 0.0), WAIT_SECONDS_MAX)
        call.defer(seconds, BlendAnswer())  # first: the index may take longer
        prompt = self.begin(call.connection, key, seconds * INDEX_SHARE)
        self._context.storage.on_sparse_lookup(
            call.connection, key.request_id, lambda found: self._answer(call, prompt, found)
        )
        return DEFERRED

    def begin(self, connection: bytes, key: EngineKey, waits: float) -> Prompt:
        """Start the lookup of a prompt, whose answer the storage has under this connection and request id.  Waits for the index
        for `waits` seconds at most."""
        context = self._context
        began = context.clock.monotonic()
        check_lookup_key(key)
        _encoded(key)
        admitted = context.admits_salt(key.cache_salt)
        shards = self._shards(key) if admitted else ()
        hashes = context.hasher.chunk_hashes(key.token_ids, key.end) if shards else ()
        tokens = cache(lambda: self._decoded(key))
        spaces = [each.space for each in shards[0].spaces] if shards else []
        asked_fleet = self.fleet.ask(spaces[0], tokens()) if self.fleet and hashes and len(spaces) == 1 else None
        matches: Sequence[Match] = ()
        if hashes:
            matches = self.feed.match(spaces, lambda: tokens()[:MATCHED_TOKENS_MAX], self._stride, waits)
        is_open = asked_fleet is not None and leaves_room(matches, key.end, context.chunk_tokens)
        parents = dict(asked_fleet.found()) if asked_fleet and is_open else {}
        if parents:
            matches = joined(matches, list(parents), hashes, context.chunk_tokens)
        chosen = choose(matches, hashes, context.chunk_tokens)
        asked = [*hashes, *[each.hash for each in chosen]]
        self.count(lookups=1, lookup_tokens=key.end, matched=len(chosen))
        context.storage.lookup_sparse(
            SparseLookupRequest(
                connection,
                key.request_id,
                shards,
                asked,
                key.num_kv_readers,
                PromptFacts(
                    key.model_name,
                    key.cache_salt,
                    key.world_size,
                    key.end,
                    len(asked) if shards else key.end // context.chunk_tokens,
                    miss_reason="" if shards else "no_worker" if admitted else "unsalted",
                ),
            )
        )
        return Prompt(key, len(asked), spaces, hashes, matches, chosen, parents, partial(self._decoded, key), began)

    def _shards(self, key: EngineKey) -> tuple[Shard, ...]:
        """What has to be there of a chunk; empty where nothing can be found.  Raises ProtocolError for a bad key."""
        if not 0 <= key.end <= MAX_TOKENS:
            raise ProtocolError(f"end is {key.end}; a prompt has 0 to {MAX_TOKENS} tokens")
        shards = registered_shards(self._context, SpaceFields(key.model_name, key.cache_salt), key.world_size)
        # Chunks that a window leaves behind are needed elsewhere.
        return tuple([Shard(shard.spaces) for shard in shards])

    def _answer(self, call: Call, prompt: Prompt, found: Bitmap) -> bool:
        """The lookup is over, on any thread.  True when the engine has got its answer."""
        if not found.size:  # nothing was asked, or another lookup has taken its place
            return call.reply(BlendAnswer())
        answer = self.result(call.connection, prompt, found)
        if call.reply(answer):
            self.answered(prompt, answer)
            return True
        self._context.storage.free_lookup(call.connection, prompt.key.request_id, 0, found.size)
        self.count(late=1)
        return False

    def result(self, connection: bytes, prompt: Prompt, found: Bitmap) -> BlendAnswer:
        """What was found.  Chunks that are not in the answer are not held any more."""
        prompt = prompt._replace(tokens=cache(prompt.tokens))
        own, chunk_tokens = len(prompt.hashes), self._context.chunk_tokens
        is_padded = own - 1 in found and prompt.tokens()[own * chunk_tokens - 1] == PADDING
        answer, unused = answer_of(
            prompt.hashes,
            prompt.chosen,
            chunk_tokens,
            own * chunk_tokens - is_padded,
            found.__contains__,
            lambda at: own + at in found,
        )
        self._learn(prompt, found, is_padded)
        for at in unused:
            self._context.storage.free_lookup(connection, prompt.key.request_id, own + at, own + at + 1)
        self._remember(prompt.tokens, answer.segments)
        return answer

    def answered(self, prompt: Prompt, answer: BlendAnswer) -> None:
        """The engine gets this answer."""
        events, key, segments = self._context.events, prompt.key, len(answer.segments)
        tokens = segments * self._context.chunk_tokens
        prefix = answer.prefix_tokens
        self.count(hit_tokens=prefix + tokens, prefix_tokens=prefix, segment_tokens=tokens)
        if events.wants(BlendLookupAnswered):
            events.publish(
                BlendLookupAnswered(
                    request_id=key.request_id,
                    model_name=key.model_name,
                    cache_salt=key.cache_salt,
                    prompt_tokens=key.end,
                    prefix_tokens=prefix,
                    segments=segments,
                    segment_tokens=tokens,
                    seconds=self._context.clock.monotonic() - prompt.began,
                )
            )

    def _remember(self, tokens: Callable[[], array[int]], segments: Sequence[BlendSegment]) -> None:
        marks = [_mark(each, tokens()[each.start : each.end]) for each in segments if not each.exact]
        with self._lock:
            self._given.update(dict.fromkeys(marks))
            while len(self._given) > GIVEN_MAX:
                self._given.popitem(last=False)

    def _learn(self, prompt: Prompt, found: Bitmap, is_padded: bool) -> None:
        """What the index did not know."""
        own, chunk_tokens = len(prompt.hashes), self._context.chunk_tokens
        known = {each.start: each for each in prompt.matches if is_own(each, prompt.hashes, chunk_tokens)}
        there = [match for at, match in enumerate(prompt.chosen) if own + at in found]
        gone = [match for at, match in enumerate(prompt.chosen) if own + at not in found]
        self.count(there=len(there), gone=len(gone))
        for match in there:
            if match in prompt.parents:
                self.count(fleet_there=1)
                window = prompt.tokens()[match.start : match.start + chunk_tokens]
                self.feed.stored_elsewhere(prompt.spaces[0], match, prompt.parents[match], window)
        for start, match in known.items():
            (there if start // chunk_tokens in found else gone).append(match)
        self.feed.note([each for each in there if each.entry], [each for each in gone if each.entry])
        missing = [at for at in range(own - is_padded) if at in found and at * chunk_tokens not in known]
        if missing and len(prompt.spaces) == 1:
            self.feed.stored(prompt.spaces[0], prompt.hashes, prompt.tokens(), missing)

    # --- what a worker asks

    def prepare(self, call: Call, key: EngineKey, segments: tuple[BlendSegment, ...], instance_id: int) -> BlendSlots:
        """See BLEND_PREPARE."""
        context = self._context
        check_request_id(key.request_id)
        _encoded(key)
        self._reads.ask(instance_id, key.request_id)
        self.count(prepares=1)
        chunks = transfer_range(context, key, instance_id)
        if chunks is None:
            return BlendSlots()
        worker = chunks.worker
        if worker.inline or context.segment is None or len(worker.groups) != 1:
            raise ProtocolError("segments are read by workers that map L1 and keep a chunk in one object")
        known = self.check(key, context.hasher.chunk_hashes(key.token_ids, key.end), segments)
        acquired = iter(self._acquire(chunks, key.request_id, [each.hash for each in segments if each in known]))
        slots = [next(acquired) if each in known else None for each in segments]
        if context.workers.find(instance_id) is not worker:
            self._release(self._reads.take(worker, key.request_id))  # it has left meanwhile
            return BlendSlots()
        self.was_read(key, instance_id, len(slots), slots.count(None))
        layout, offset = worker.layout, context.storage.payload_offset
        return BlendSlots(
            tuple(
                [
                    None
                    if slot is None
                    else SlotDescriptor(offset(slot), layout.payload_bytes, layout.shape, layout.dtype)
                    for slot in slots
                ]
            )
        )

    def commit(self, call: Call, request_id: str, instance_id: int) -> bool:
        """See BLEND_COMMIT.  May come from a worker that was taken for dead."""
        self._release(self._reads.commit(instance_id, request_id))
        return True

    def _acquire(self, chunks: TransferRange, request_id: str, hashes: Sequence[bytes]) -> list[int | None]:
        """All at once, or, where one is not there, each for itself."""
        if not hashes:
            return []
        context, worker, space = self._context, chunks.worker, chunks.space(self._context)
        slots: list[int | None] = []
        for some in (hashes, *[[each] for each in hashes]):
            references = context.storage.acquire(worker.token, request_id, space, some, chunks.first_chunk)
            if references is not None:
                self._reads.add(worker, request_id, references)
                slots += references.slots
                if some is hashes:
                    break
            elif some is not hashes:
                slots.append(None)
        return slots

    def _release(self, held: Sequence[SlotReferences]) -> None:
        for references in held:
            self._context.storage.release(references)

    def check(self, key: EngineKey, own: Sequence[bytes], segments: Sequence[BlendSegment]) -> set[BlendSegment]:
        """Those whose tokens are known to be those of the chunk; the others have left the index.  Raises ProtocolError unless a
        lookup could have given all."""
        size, tokens = self._context.chunk_tokens, cache(lambda: self._decoded(key))
        shards = self._shards(key)
        spaces = [each.space for each in shards[0].spaces] if shards else []
        end, known = 0, set()
        for each in segments:
            where = f"segment {each.start} to {each.end}"
            if each.start < end or each.end - each.start != size or each.end > key.end:
                raise ProtocolError(
                    f"{where} is not behind the one before it and one chunk of {size} tokens of the prompt"
                )
            if each.old_end - each.old_start != size or each.old_start % size or each.old_start < 0:
                raise ProtocolError(f"{where} was not a chunk of {size} tokens at {each.old_start} to {each.old_end}")
            end = each.end
            if each.exact:
                is_so = each.start == each.old_start and own[each.start // size :][:1] == [each.hash]
            else:
                window = tokens()[each.start : each.end]
                found = [match for space in spaces if (match := self.feed.find(space, window, each.hash))]
                is_so = any(match.place * size == each.old_start for match in found)
                if not is_so and self._has_given(_mark(each, window)):
                    continue
            if not is_so:
                raise ProtocolError(f"{where} does not have the tokens of a chunk with its hash that is known here")
            known.add(each)
        return known

    def _has_given(self, mark: int) -> bool:
        with self._lock:
            return mark in self._given

    def _decoded(self, key: EngineKey) -> array[int]:
        ids = _encoded(key)
        return self.index.decode(ids.encoded, ids.count)[: key.end]

    # --- what they share

    def count(self, **more: int) -> None:
        with self._lock:
            self._counts.update(more)

    def was_read(self, key: EngineKey, instance_id: int, segments: int, gone: int) -> None:
        """A worker has asked for segments, or their bytes are in its pages."""
        self.count(segments=segments, segments_gone=gone)
        events = self._context.events
        if events.wants(BlendSegmentsRead):
            events.publish(
                BlendSegmentsRead(
                    request_id=key.request_id,
                    model_name=key.model_name,
                    cache_salt=key.cache_salt,
                    instance_id=instance_id,
                    segments=segments - gone,
                    gone=gone,
                )
            )

    def handler(self, operation: Operation, function: Callable[..., object], *, may_be_refused: bool = True) -> Handler:
        """A handler on a thread that may block.  It counts refusals by reason, for the status, and publishes them."""

        @wraps(function)
        def noted(*payload: object) -> object:
            try:
                return function(*payload)
            except ProtocolError as error:
                self.count(refused=1)
                self._refusals.count(error)
                if self._context.events.wants(BlendRequestRefused):
                    self._context.events.publish(BlendRequestRefused(operation=operation.name, reason=str(error)))
                raise

        return Handler(operation, noted, HandlerMode.AFFINE, may_be_refused=may_be_refused)


def _encoded(key: EngineKey) -> TokenSequence:
    """Raises ProtocolError for keys without tokens."""
    ids = key.token_ids
    assert isinstance(ids, TokenSequence), "a key that was received"
    if ids.count and not ids.encoded:
        raise ProtocolError("the key has chunk_hashes and no token_ids: chunks are found by their tokens")
    return ids


def _mark(segment: BlendSegment, tokens: array[int]) -> int:
    """Of a segment and the tokens of its window."""
    return hash((segment.hash, segment.old_start, tokens.tobytes()))


def open_module(settings: BlendSettings, context: ModuleContext) -> BlendModule:
    """Raises ValueError where the server has no feed of L1."""
    if context.residency is None:
        raise ValueError("this server has no feed of L1's changes")
    return BlendModule(settings, context, context.residency)
