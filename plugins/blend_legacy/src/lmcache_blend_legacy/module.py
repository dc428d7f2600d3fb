"""The requests `cb_...` of the first version: engines with a buffer of rows store documents, each for itself, and get them back
wherever they are in a prompt.

Documents have a model name of their own: what was computed without the prompt around it is not the KV of any prompt, so that no
request for a prefix may find it.  Their buffers are registered under it, too, and under an instance id that no engine has: the
same engine may have registered its pages.
"""

from __future__ import annotations

import threading
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial, wraps
from typing import Final

import msgspec

from lmcache_blend_legacy.events import LegacyChunksRead, LegacyLookupAnswered, LegacyRequestRefused
from lmcache_blend_legacy.messages import (
    LOOKUP,
    LOOKUP_V2,
    NOT_MOVED,
    NOTHING_TO_STORE,
    REGISTER,
    RETRIEVE,
    RETRIEVE_V2,
    STORE_FINAL,
    STORE_PRE_COMPUTED,
    UNREGISTER,
)
from lmcache_blend_legacy.segments import SegmentChunk, chunks_of_matches, chunks_of_ranges, joined, segment_chunks
from lmcache_blend_legacy.settings import BlendLegacySettings
from lmcache_client import BlendMatch, encode_tokens
from lmcache_core import (
    DEFERRED,
    Bitmap,
    Call,
    EngineKey,
    Handler,
    HandlerMode,
    ModuleContext,
    Operation,
    PageMover,
    PromptFacts,
    ProtocolError,
    Refusals,
    RequestModule,
    SlotReferences,
    SpaceFields,
    SparseLookupRequest,
    StoredSpace,
    TransferRange,
    check_lookup_key,
    check_model_name,
    parse_model_name,
    registered_shards,
    store_patience,
    transfer_range,
)
from lmcache_kv_identity import approximate_name, segment_name, with_variant

INSTANCE_MAX: Final = 2**63 - 1
ROW_MAX: Final = 2**48
WAIT_SECONDS: Final = 300.0
"""For what a lookup loads; the server's own deadline for lookups is earlier."""
NO_ROW: Final = -1


class BlendLegacyModule(RequestModule):
    """Requests run on threads that may take long.  Safe from any thread."""

    def __init__(self, settings: BlendLegacySettings, context: ModuleContext) -> None:
        self._context = context
        self._separator = settings.special_tokens
        self._refusals = Refusals()
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def handlers(self) -> Sequence[Handler]:
        handler = self._handler
        return [
            handler(REGISTER, self.register, may_be_refused=False),
            handler(UNREGISTER, self.unregister, may_be_refused=False),
            handler(STORE_PRE_COMPUTED, self.store_pre_computed),
            handler(STORE_FINAL, self.store_final),
            handler(LOOKUP, self.lookup),
            handler(LOOKUP_V2, self.lookup_v2),
            handler(RETRIEVE, self.retrieve),
            handler(RETRIEVE_V2, self.retrieve_v2),
        ]

    def status(self) -> dict[str, object]:
        """Since the server started."""
        return {**self.counts(), "refused": self._refusals.status()}

    def counts(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)

    # --- buffers

    def register(
        self, call: Call, instance_id: int, tensors: list[msgspec.msgpack.Ext], model_name: str, world_size: int
    ) -> None:
        """The answer is empty, also for a buffer that is refused: the status has the reason."""
        named = _named(model_name, segment_name)
        self._mover().register_rows(_buffer_id(instance_id), call.connection, tensors, named, world_size)

    def unregister(self, call: Call, instance_id: int) -> None:
        buffer_id = _buffer_id(instance_id)
        worker = self._context.workers.find(buffer_id)
        if worker is not None:
            self._mover().check_connection(worker, call.connection)
            self._context.workers.unregister(buffer_id, "unregistered")

    # --- storing

    def store_pre_computed(
        self, call: Call, key: EngineKey, offset: int, instance_id: int, event: bytes
    ) -> tuple[bytes, bool]:
        """Every segment of the range, as if nothing were before it.  Chunks that are there, or find no room, are skipped."""
        buffer = self._buffer(call, key, instance_id)
        chunks = self._chunks(key)
        if buffer is None:
            return NOT_MOVED
        return self._store(call, key, buffer, buffer.space(self._context), chunks, offset, event)

    def store_final(
        self, call: Call, key: EngineKey, offset: int, instance_id: int, event: bytes
    ) -> tuple[bytes, bool]:
        """The whole chunks of the prompt in the range, which were computed over KV that is not exact."""
        buffer = self._buffer(call, key, instance_id)
        size = self._context.chunk_tokens
        if not 0 <= key.start <= key.end:
            raise ProtocolError(f"the range {key.start} to {key.end} runs backwards")
        hashes = self._context.hasher.chunk_hashes(key.token_ids, key.end)
        chunks = [
            SegmentChunk(hashes[at], at * size, (at + 1) * size, at * size)
            for at in range(-(-key.start // size), len(hashes))
        ]
        if buffer is None:
            return NOT_MOVED
        approximate = buffer._replace(fields=SpaceFields(_named(key.model_name, approximate_name), key.cache_salt))
        return self._store(call, key, buffer, approximate.space(self._context), chunks, offset, event)

    def _store(
        self,
        call: Call,
        key: EngineKey,
        buffer: TransferRange,
        space: StoredSpace,
        chunks: Sequence[SegmentChunk],
        offset: int,
        event: bytes,
    ) -> tuple[bytes, bool]:
        mover, storage = self._mover(), self._context.storage
        first = {each.hash: each for each in reversed(chunks)}  # of those that are alike
        unique = [*reversed(first.values())]
        rows = {each: self._rows(each, offset - key.start) for each in unique}
        references, indexes = storage.reserve(
            buffer.worker.token, space, [each.hash for each in unique], store_patience(call)
        )
        if not references.slots:
            return NOTHING_TO_STORE
        written = [unique[index] for index in indexes]
        try:
            return mover.copy_rows(
                buffer.worker,
                references,
                _flat(rows[each] for each in written),
                True,
                event,
                partial(self._stored, references, written[0].start // self._context.chunk_tokens, key.request_id),
            )
        except BaseException:
            storage.discard(references)
            raise

    def _stored(self, references: SlotReferences, first_chunk: int, request_id: str, arrived: bool) -> bool:
        if not arrived:
            self._context.storage.discard(references)
            return False
        published = self._context.storage.publish(references, first_chunk, request_id)
        self._count(stored_chunks=len(references.slots) if published else 0)
        return published

    # --- finding

    def lookup(self, call: Call, key: EngineKey) -> object:
        """Ranges of the prompt that are there; what is found is held as by `lookup`."""
        return self._lookup(call, key, joined)

    def lookup_v2(self, call: Call, key: EngineKey) -> object:
        """The same, chunk by chunk."""
        return self._lookup(call, key, lambda chunks: [each.match for each in chunks])

    def _lookup(self, call: Call, key: EngineKey, shown: Callable[[Sequence[SegmentChunk]], object]) -> object:
        context, storage = self._context, self._context.storage
        check_lookup_key(key)
        fields = SpaceFields(_named(key.model_name, segment_name), key.cache_salt)
        admitted = context.admits_salt(key.cache_salt)
        shards = registered_shards(context, fields, key.world_size) if admitted else ()
        chunks = self._chunks(key)
        began = context.clock.monotonic()
        self._count(lookups=1, lookup_tokens=_tokens(chunks))
        call.defer(WAIT_SECONDS, [])
        storage.lookup_sparse(
            SparseLookupRequest(
                call.connection,
                key.request_id,
                shards,
                [each.hash for each in chunks] if shards else (),
                key.num_kv_readers or 1,  # old engines do not send it
                PromptFacts(
                    key.model_name,
                    key.cache_salt,
                    key.world_size,
                    key.end - key.start,
                    len(chunks),
                    miss_reason="" if shards else "no_worker" if admitted else "unsalted",
                ),
            )
        )

        def answer(found: Bitmap) -> bool:
            there = [each for at, each in enumerate(chunks) if at < found.size and at in found]
            if call.reply(shown(there)):
                self._answered(key, chunks, there, began)
                return True
            storage.free_lookup(call.connection, key.request_id, 0, found.size)
            return False

        storage.on_sparse_lookup(call.connection, key.request_id, answer)
        return DEFERRED

    def _answered(
        self, key: EngineKey, chunks: Sequence[SegmentChunk], there: Sequence[SegmentChunk], began: float
    ) -> None:
        self._count(found_tokens=_tokens(there))
        events = self._context.events
        if events.wants(LegacyLookupAnswered):
            events.publish(
                LegacyLookupAnswered(
                    request_id=key.request_id,
                    model_name=key.model_name,
                    cache_salt=key.cache_salt,
                    tokens=_tokens(chunks),
                    chunks=len(chunks),
                    found_tokens=_tokens(there),
                    found_chunks=len(there),
                    seconds=self._context.clock.monotonic() - began,
                )
            )

    # --- reading

    def retrieve(
        self, call: Call, key: EngineKey, ranges: list[tuple[int, int]], offset: int, instance_id: int, event: bytes
    ) -> tuple[bytes, bool]:
        """All ranges, or nothing."""
        buffer = self._buffer(call, key, instance_id)
        chunks = chunks_of_ranges(self._chunks(key), ranges)
        return self._retrieve(key, buffer, chunks, offset, instance_id, event) if buffer else NOT_MOVED

    def retrieve_v2(
        self, call: Call, key: EngineKey, matches: list[BlendMatch], offset: int, instance_id: int, event: bytes
    ) -> tuple[bytes, bool]:
        """All matches, or nothing."""
        buffer = self._buffer(call, key, instance_id)
        chunks = chunks_of_matches(self._chunks(key), matches)
        return self._retrieve(key, buffer, chunks, offset, instance_id, event) if buffer else NOT_MOVED

    def _retrieve(
        self,
        key: EngineKey,
        buffer: TransferRange,
        chunks: Sequence[SegmentChunk],
        offset: int,
        instance_id: int,
        event: bytes,
    ) -> tuple[bytes, bool]:
        self._count(retrieves=1)
        if not chunks:
            return NOT_MOVED
        mover, storage = self._mover(), self._context.storage
        rows = _flat(self._rows(each, offset - key.start) for each in chunks)
        space = buffer.space(self._context)
        held = storage.acquire(buffer.worker.token, key.request_id, space, [each.hash for each in chunks], 0)
        if held is None:
            self._was_read(key, instance_id, len(chunks), 0)
            return NOT_MOVED

        def retrieved(arrived: bool) -> bool:
            storage.release(held)
            self._was_read(key, instance_id, len(chunks), len(chunks) if arrived else 0)
            return arrived

        try:
            return mover.copy_rows(buffer.worker, held, rows, False, event, retrieved)
        except BaseException:
            storage.release(held)
            raise

    def _was_read(self, key: EngineKey, instance_id: int, asked: int, chunks: int) -> None:
        self._count(asked_chunks=asked, retrieved_chunks=chunks)
        events = self._context.events
        if events.wants(LegacyChunksRead):
            events.publish(
                LegacyChunksRead(
                    request_id=key.request_id,
                    model_name=key.model_name,
                    cache_salt=key.cache_salt,
                    instance_id=instance_id,
                    asked_chunks=asked,
                    chunks=chunks,
                )
            )

    # --- what they share

    def _buffer(self, call: Call, key: EngineKey, instance_id: int) -> TransferRange | None:
        """Whose buffer it is; None where the salt is not served.  Raises ProtocolError where the key cannot be its worker's, or
        the buffer is that of another process."""
        buffer_id = _buffer_id(instance_id)
        if self._context.workers.find(buffer_id) is None:
            raise ProtocolError(f"instance {instance_id} has no buffer: cb_register_kv_cache comes first")
        # The chunks are not those of the prompt: none of its tokens are read here.
        asked = msgspec.structs.replace(
            key, model_name=_named(key.model_name, segment_name), token_ids=encode_tokens(()), start=0, end=0
        )
        buffer = transfer_range(self._context, asked, buffer_id)
        if buffer is not None:
            self._mover().check_connection(buffer.worker, call.connection)
        return buffer

    def _chunks(self, key: EngineKey) -> list[SegmentChunk]:
        return segment_chunks(key, self._separator, self._context.hasher, self._context.chunk_tokens)

    def _rows(self, chunk: SegmentChunk, shift: int) -> list[int]:
        """The rows of the buffer that hold a chunk: token `i` of the prompt is in row `i + shift`.  Raises ProtocolError."""
        first, last = chunk.start + shift, chunk.end + shift
        if not 0 <= first <= last <= ROW_MAX:
            raise ProtocolError(
                f"tokens {chunk.start} to {chunk.end} would be in the rows {first} to {last} of the buffer"
            )
        return [*range(first, last), *[NO_ROW] * (self._context.chunk_tokens - (last - first))]

    def _mover(self) -> PageMover:
        if not self._context.page_movers:
            raise ProtocolError(
                "nothing here copies an engine's rows; install lmcache-transfer-torch, and start the server with "
                "--supported-transfer-mode auto or lmcache_driven"
            )
        return self._context.page_movers[0]

    def _count(self, **more: int) -> None:
        with self._lock:
            self._counts.update(more)

    def _handler(
        self, operation: Operation, function: Callable[..., object], *, may_be_refused: bool = True
    ) -> Handler:
        """A handler that counts refusals by reason, for the status, and publishes them."""

        @wraps(function)
        def noted(*payload: object) -> object:
            try:
                return function(*payload)
            except ProtocolError as error:
                self._count(refused_requests=1)
                self._refusals.count(error)
                if self._context.events.wants(LegacyRequestRefused):
                    self._context.events.publish(LegacyRequestRefused(operation=operation.name, reason=str(error)))
                raise

        return Handler(operation, noted, HandlerMode.AFFINE, may_be_refused=may_be_refused)


def _buffer_id(instance_id: int) -> int:
    """The id under which the buffer of an engine is registered; no engine's own registration has it.  Raises ProtocolError."""
    if not 0 <= instance_id <= INSTANCE_MAX:
        raise ProtocolError(f"instance id {instance_id} does not fit 63 bits")
    return ~instance_id


def _named(model_name: str, name_of: Callable[[str], str]) -> str:
    """The model name that documents are stored under: `name_of` the engine's name, then the variant of the request.  Raises
    ProtocolError for an empty name."""
    check_model_name(model_name)
    served, identity, variant = parse_model_name(model_name)
    return with_variant(name_of(f"{served}##{identity}" if identity else served), variant)


def _tokens(chunks: Sequence[SegmentChunk]) -> int:
    return sum(each.end - each.start for each in chunks)


def _flat(rows: Iterable[Sequence[int]]) -> Sequence[int]:
    found = array("q")
    for each in rows:
        found.extend(each)
    return found


def open_module(settings: BlendLegacySettings, context: ModuleContext) -> BlendLegacyModule:
    return BlendLegacyModule(settings, context)
