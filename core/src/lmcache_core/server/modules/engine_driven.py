"""Workers that move their own bytes: through L1's shared-memory segment, or in-band where they cannot map it.

A worker prepares a transfer, gets slots (shared memory) or bytes (in-band), and commits when it is done.  Between the two
its slots belong to it: nobody else is given them, whatever happens to the request, until the worker has answered,
unregistered, or is known dead.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from lmcache_core.contracts.operation import ELSEWHERE, Call, Handler, HandlerMode
from lmcache_core.contracts.request_module import ModuleContext, RequestModule, SpaceFields, Worker
from lmcache_core.contracts.settings import PluginSettings
from lmcache_core.contracts.storage import Hold, StoredSpace
from lmcache_core.model.errors import ProtocolError
from lmcache_core.model.keys import pack_kv_rank
from lmcache_core.model.layout import ObjectLayout
from lmcache_core.wire.legacy_pickle import read_tensors
from lmcache_core.wire.legacy_pickle_writer import inband_reply
from lmcache_core.wire.legacy_tensor import PickledTensor
from lmcache_core.wire.messages import (
    EngineDrivenRegistration,
    EngineKey,
    PrepareRetrieveReply,
    PrepareStoreReply,
    RetrieveContext,
    SharedMemoryOffer,
    SlotDescriptor,
    StoreContext,
)
from lmcache_core.wire.operations import (
    COMMIT_RETRIEVE,
    COMMIT_STORE,
    PREPARE_RETRIEVE,
    PREPARE_STORE,
    REGISTER_ENGINE_DRIVEN,
    UNREGISTER_ENGINE_DRIVEN,
)

logger = logging.getLogger(__name__)

NOTHING_TO_STORE = PrepareStoreReply(StoreContext((), ()))
IN_BAND = PrepareStoreReply()
MISS = PrepareRetrieveReply(success=False)
INBAND_READS_MAX = 8
"""In-band retrieves that a worker may have open: each is a copy of its chunks until the worker has read it."""
REASON_MAX, REASONS_MAX = 300, 100
"""Characters of a reason, and number of reasons, that status keeps for refused registrations."""


class _Ticket(NamedTuple):
    """What a prepare and its commit have in common."""

    salt: str
    start: int
    end: int
    last_hash: bytes


class _Range(NamedTuple):
    """The chunks that a request is about."""

    worker: Worker
    space: StoredSpace
    hashes: Sequence[bytes]
    first_chunk: int
    ticket: _Ticket


class _Store(NamedTuple):
    """A store that was prepared and not committed."""

    hold: Hold
    indexes: Sequence[int]


class EngineDrivenModule(RequestModule):
    def __init__(self, context: ModuleContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        # By token of the worker.  A ticket has several stores when it was prepared again after its deadline.
        self._stores: dict[int, dict[_Ticket, list[_Store]]] = {}
        self._reads: dict[int, dict[_Ticket, list[Hold]]] = {}
        self._refused: dict[str, int] = {}
        context.workers.on_leave(self._left)

    def handlers(self) -> Sequence[Handler]:
        return [
            Handler(REGISTER_ENGINE_DRIVEN, self.register, HandlerMode.INLINE),
            Handler(UNREGISTER_ENGINE_DRIVEN, self.unregister, HandlerMode.ORDERED),
            Handler(PREPARE_STORE, self.prepare_store, HandlerMode.ORDERED),
            Handler(COMMIT_STORE, self.commit_store, HandlerMode.ORDERED),
            Handler(PREPARE_RETRIEVE, self.prepare_retrieve, HandlerMode.ORDERED),
            Handler(COMMIT_RETRIEVE, self.commit_retrieve, HandlerMode.ORDERED),
        ]

    def status(self) -> dict[str, object]:
        with self._lock:
            return {
                "stores_prepared": sum(len(stores) for by in self._stores.values() for stores in by.values()),
                "reads_prepared": sum(len(holds) for reads in self._reads.values() for holds in reads.values()),
                "registrations_refused": dict(self._refused),
            }

    # --- registration

    def register(self, call: Call, payload: EngineDrivenRegistration) -> SharedMemoryOffer:
        """An empty offer means in-band transfer, or, with a reason in log and status, a refusal: the engine then runs
        uncached."""
        context = self._context
        try:
            worker = context.workers.register(self._worker(payload))
        except (ProtocolError, ValueError) as error:
            logger.error(
                "registration refused, the engine runs uncached instance=%d reason=%s", payload.instance_id, error
            )
            reason = str(error)[:REASON_MAX]
            if reason in self._refused or len(self._refused) < REASONS_MAX:
                self._refused[reason] = self._refused.get(reason, 0) + 1
            context.workers.seen(payload.instance_id, pinged=False)  # it has its answer; no ping need tell it again
            return SharedMemoryOffer()
        if context.segment is None or worker.inline:
            return SharedMemoryOffer()
        return SharedMemoryOffer(context.segment, context.l1_bytes)

    def unregister(self, call: Call, instance_id: int) -> None:
        self._context.workers.unregister(instance_id, "unregistered")

    def _worker(self, payload: EngineDrivenRegistration) -> Worker:
        slots = payload.num_physical_slots or self._context.chunk_tokens
        layout = ObjectLayout(
            1 if payload.use_mla else 2, payload.num_layers, slots, payload.hidden_dim_size, payload.dtype_str
        )
        # Raises here, and not at the first store, if these workers' keys or objects cannot be kept.
        self._context.space(SpaceFields(payload.model_name, ""), pack_kv_rank(payload.world_size, 0), layout)
        if layout.payload_bytes > self._context.l1_bytes // 8:
            raise ProtocolError(
                f"a chunk of {layout.payload_bytes / 2**20:.1f} MiB is too large for an L1 of "
                f"{self._context.l1_bytes / 2**30:.2f} GiB; raise l1_size_gb or lower chunk_size"
            )
        # In a world of one there is no doubt which shard it is; others are known from their first transfer.
        shard = 0 if payload.world_size == 1 else None
        inline = self._context.segment is None
        return Worker(payload.instance_id, payload.model_name, payload.world_size, layout, shard, inline, proven=inline)

    # --- storing

    def prepare_store(self, call: Call, key: EngineKey, instance_id: int) -> object:
        chunks = self._range(key, instance_id)
        if chunks is None:
            return NOTHING_TO_STORE
        if chunks.worker.inline:
            return IN_BAND
        worker, storage = chunks.worker, self._context.storage
        with self._lock:
            stores = self._stores.get(worker.token, {}).get(chunks.ticket, [])
            prepared = stores[-1] if stores else None
        if prepared is None or not storage.is_live(prepared.hold):
            if not call.may_wait and not storage.has_room(chunks.space, len(chunks.hashes)):
                return ELSEWHERE  # pages have to be allocated
            prepared = _Store(*storage.reserve(worker.token, chunks.space, chunks.hashes, _patience(call)))
            if not prepared.hold.slots or not self._remember_store(worker, chunks.ticket, prepared):
                return NOTHING_TO_STORE
        slots = self._descriptors(worker.layout, prepared.hold.slots)
        return PrepareStoreReply(StoreContext(slots, tuple(prepared.indexes)))

    def commit_store(self, call: Call, key: EngineKey, instance_id: int, data: memoryview) -> object:
        if len(data) and not call.may_wait:
            return ELSEWHERE  # bytes have to be copied
        chunks = self._range(key, instance_id)
        if chunks is None:
            return False
        storage, worker = self._context.storage, chunks.worker
        with self._lock:
            stores = self._stores.get(worker.token, {}).pop(chunks.ticket, [])
        prepared = stores.pop() if stores else None
        for late in stores:
            storage.discard(late.hold)  # the worker has answered for this ticket: it touches none of its slots any more
        if len(data):
            return self._commit_inband(call, key, chunks, prepared, data)
        if prepared is None:
            return False
        worker.proven = True
        return storage.publish(prepared.hold, chunks.first_chunk + prepared.indexes[0], key.request_id)

    def _remember_store(self, worker: Worker, ticket: _Ticket, prepared: _Store) -> bool:
        """False, and its slots are free again, when the worker has left meanwhile."""
        with self._lock:
            self._stores.setdefault(worker.token, {}).setdefault(ticket, []).append(prepared)
        if self._context.workers.find(worker.instance_id) is worker:
            return True
        with self._lock:
            self._stores.pop(worker.token, None)
        self._context.storage.discard(prepared.hold)
        return False

    def _commit_inband(
        self, call: Call, key: EngineKey, chunks: _Range, prepared: _Store | None, data: memoryview
    ) -> bool:
        """The chunks came with the commit, perhaps from a worker that was offered shared memory and could not map it;
        what was reserved for it then is filled here."""
        storage, worker = self._context.storage, chunks.worker
        if prepared is None:
            prepared = _Store(*storage.reserve(worker.token, chunks.space, chunks.hashes, _patience(call)))
        try:
            tensors = self._read(chunks, data)
            worker.inline = worker.proven = True
            if not prepared.hold.slots:
                return True
            with storage.using(prepared.hold) as alive:
                if alive:
                    for slot, index in zip(prepared.hold.slots, prepared.indexes, strict=True):
                        storage.payload(slot)[:] = tensors[index].data
        except BaseException:
            storage.discard(prepared.hold)
            raise
        return storage.publish(prepared.hold, chunks.first_chunk + prepared.indexes[0], key.request_id)

    @staticmethod
    def _read(chunks: _Range, data: memoryview) -> Sequence[PickledTensor]:
        """The tensors of a commit.  Raises ProtocolError unless they are this range's chunks in this worker's layout."""
        tensors, layout = read_tensors(data, len(chunks.hashes)), chunks.worker.layout
        if len(tensors) != len(chunks.hashes):
            raise ProtocolError(f"{len(tensors)} tensors for {len(chunks.hashes)} chunks")
        for tensor in tensors:
            if (tensor.dtype, tensor.shape) != (layout.dtype, layout.shape):
                raise ProtocolError(
                    f"a tensor of {tensor.shape} {tensor.dtype}, registered is {layout.shape} {layout.dtype}"
                )
        return tensors

    # --- retrieving

    def prepare_retrieve(self, call: Call, key: EngineKey, instance_id: int) -> object:
        chunks = self._range(key, instance_id)
        if chunks is None or not chunks.hashes:
            return MISS
        worker, storage = chunks.worker, self._context.storage
        in_band = worker.inline or not worker.proven
        if in_band and not call.may_wait:
            return ELSEWHERE  # bytes have to be copied
        hold = storage.acquire(worker.token, key.request_id, chunks.space, chunks.hashes, chunks.first_chunk)
        if hold is None or not self._remember_read(worker, chunks.ticket, hold):
            return MISS
        if in_band and self._reads_open(worker) > INBAND_READS_MAX:
            raise ProtocolError(
                f"instance {instance_id} has {INBAND_READS_MAX} in-band retrieves open; it must commit them"
            )
        slots = RetrieveContext(self._descriptors(worker.layout, hold.slots))
        if not in_band:
            return PrepareRetrieveReply(True, b"", slots)
        # Until it has stored through shared memory, nobody knows whether it could map it: it is given both.
        with storage.using(hold) as alive:
            if not alive:
                return MISS
            payloads = [storage.payload(slot) for slot in hold.slots]
            return inband_reply(worker.layout.dtype, worker.layout.shape, payloads, None if worker.inline else slots)

    def _reads_open(self, worker: Worker) -> int:
        with self._lock:
            return sum(map(len, self._reads.get(worker.token, {}).values()))

    def _remember_read(self, worker: Worker, ticket: _Ticket, hold: Hold) -> bool:
        """False, and nothing is held, when the worker has left meanwhile."""
        with self._lock:
            self._reads.setdefault(worker.token, {}).setdefault(ticket, []).append(hold)
        if self._context.workers.find(worker.instance_id) is worker:
            return True
        with self._lock:
            self._reads.pop(worker.token, None)
        self._context.storage.release(hold)
        return False

    def commit_retrieve(self, call: Call, key: EngineKey, instance_id: int) -> bool:
        chunks = self._range(key, instance_id)
        if chunks is None:
            return True
        with self._lock:
            reads = self._reads.get(chunks.worker.token, {})
            holds = reads.get(chunks.ticket, [])
            hold = holds.pop() if holds else None
            if not holds:
                reads.pop(chunks.ticket, None)
        if hold is not None:
            self._context.storage.release(hold)
        return True

    # --- what they share

    def _range(self, key: EngineKey, instance_id: int) -> _Range | None:
        """The chunks that `key` means for this worker; None when the worker is not registered or the salt is not
        admitted.  Raises ProtocolError when the key cannot be this worker's."""
        context = self._context
        worker = context.workers.find(instance_id)
        if worker is None or not context.workers.touch(worker):
            return None
        if (key.model_name, key.world_size) != (worker.model_name, worker.world_size):
            raise ProtocolError(
                f"instance {instance_id} is registered for {worker.model_name} (world size {worker.world_size}), "
                f"not for {key.model_name} ({key.world_size})"
            )
        if key.worker_id is None:
            raise ProtocolError("a transfer names its worker_id")
        rank = pack_kv_rank(key.world_size, key.worker_id)
        if not context.admits_salt(key.cache_salt):
            return None
        if worker.shard is None:
            worker.shard = key.worker_id
        if worker.shard != key.worker_id:
            raise ProtocolError(f"instance {instance_id} is shard {worker.shard}, not {key.worker_id}")
        tokens = context.chunk_tokens
        if key.start % tokens or not 0 <= key.start <= key.end:
            raise ProtocolError(f"the range {key.start} to {key.end} does not start at a chunk of {tokens} tokens")
        first = key.start // tokens
        hashes = context.hasher.chunk_hashes(key.request_id, key.token_ids, key.end)[first:]
        space = context.space(SpaceFields(key.model_name, key.cache_salt), rank, worker.layout)
        ticket = _Ticket(key.cache_salt, key.start, key.end, hashes[-1] if hashes else b"")
        return _Range(worker, space, hashes, first, ticket)

    def _descriptors(self, layout: ObjectLayout, slots: Sequence[int]) -> tuple[SlotDescriptor, ...]:
        offset = self._context.storage.payload_offset
        length, shape, dtype = layout.payload_bytes, layout.shape, layout.dtype
        return tuple(SlotDescriptor(offset(slot), length, shape, dtype) for slot in slots)

    def _left(self, worker: Worker) -> None:
        """Its holds have ended; forget them here."""
        with self._lock:
            self._stores.pop(worker.token, None)
            self._reads.pop(worker.token, None)


def _patience(call: Call) -> Callable[[], bool] | None:
    """May a store wait for room?  Never on the router's thread, and only until others wait for this one."""
    return (lambda: not call.others_wait) if call.may_wait else None


def open_engine_driven(settings: PluginSettings | None, context: ModuleContext) -> EngineDrivenModule:
    return EngineDrivenModule(context)
