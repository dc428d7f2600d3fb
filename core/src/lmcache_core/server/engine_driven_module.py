"""Workers that move their own bytes: through L1's shared-memory segment, or in-band where they cannot map it.

A worker prepares a transfer, gets slots (shared memory) or bytes (in-band), and commits when it is done.  Between the two
its slots belong to it: no other request gets them, whatever happens to its request, until the worker has answered,
unregistered, or is known dead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from lmcache_client.engine_key import EngineKey
from lmcache_client.errors import ProtocolError
from lmcache_client.layout import ChunkLayout, ObjectLayout, joined_layout
from lmcache_client.messages import (
    EngineDrivenRegistration,
    PrepareRetrieveReply,
    PrepareStoreReply,
    RetrieveContext,
    SharedMemoryOffer,
    SlotDescriptor,
    StoreContext,
    WorkerRegistration,
)
from lmcache_client.operations import (
    ABANDON_STORE,
    COMMIT_RETRIEVE,
    COMMIT_STORE,
    PREPARE_RETRIEVE,
    PREPARE_STORE,
    REGISTER_ENGINE_DRIVEN,
    REGISTER_WORKER,
    UNREGISTER_ENGINE_DRIVEN,
)
from lmcache_client.stock_pickle_writer import inband_reply
from lmcache_client.stock_pickles import PickledTensor, read_tensors
from lmcache_core.contracts.operation import ELSEWHERE, Call, Handler, HandlerMode
from lmcache_core.contracts.request_module import ModuleContext, ObjectGroup, RequestModule, Worker
from lmcache_core.contracts.settings import PluginSettings
from lmcache_core.contracts.storage import SlotReferences, StoredSpace
from lmcache_core.server.open_transfers import OpenReads, OpenStore, OpenStores, Ticket
from lmcache_core.server.registrations import Refusals, check_groups
from lmcache_core.server.request_fields import check_names, store_patience, transfer_range

NOTHING_TO_STORE = PrepareStoreReply(StoreContext((), ()))
IN_BAND = PrepareStoreReply()
MISS = PrepareRetrieveReply(success=False)
INBAND_READS_MAX = 8
"""In-band retrieves that a worker may have open: each is a copy of its chunks until the worker has read it."""


class _Range(NamedTuple):
    """The chunks that a request is about."""

    worker: Worker
    space: StoredSpace
    hashes: Sequence[bytes]
    first_chunk: int
    ticket: Ticket


class EngineDrivenModule(RequestModule):
    def __init__(self, context: ModuleContext) -> None:
        self._context = context
        self._stores = OpenStores()
        self._reads = OpenReads()
        self._refused = Refusals()
        context.workers.on_leave(self._left)

    def handlers(self) -> Sequence[Handler]:
        return [
            Handler(REGISTER_ENGINE_DRIVEN, self.register, HandlerMode.INLINE, may_be_refused=False),
            Handler(UNREGISTER_ENGINE_DRIVEN, self.unregister, HandlerMode.ORDERED, may_be_refused=False),
            Handler(PREPARE_STORE, self.prepare_store, HandlerMode.ORDERED),
            Handler(COMMIT_STORE, self.commit_store, HandlerMode.ORDERED, may_be_refused=False),
            Handler(PREPARE_RETRIEVE, self.prepare_retrieve, HandlerMode.ORDERED, may_be_refused=False),
            Handler(COMMIT_RETRIEVE, self.commit_retrieve, HandlerMode.ORDERED, may_be_refused=False),
            Handler(REGISTER_WORKER, self.register_worker, HandlerMode.INLINE, may_be_refused=False),
            Handler(ABANDON_STORE, self.abandon_store, HandlerMode.ORDERED, may_be_refused=False),
        ]

    def status(self) -> dict[str, object]:
        return {
            "stores_prepared": len(self._stores),
            "reads_prepared": len(self._reads),
            "registrations_refused": self._refused.status(),
        }

    # --- registration

    def register(self, call: Call, payload: EngineDrivenRegistration) -> SharedMemoryOffer:
        """An empty offer means in-band transfer, or, with a reason in log and status, a refusal: the engine then runs
        uncached."""
        return self._admit(payload.instance_id, lambda: self._stock_worker(call, payload))

    def register_worker(self, call: Call, payload: WorkerRegistration) -> SharedMemoryOffer:
        """An empty offer is a refusal, with a reason in log and status: the worker then runs uncached."""
        return self._admit(payload.instance_id, lambda: self._mapping_worker(call, payload))

    def _admit(self, instance_id: int, described: Callable[[], Worker]) -> SharedMemoryOffer:
        context = self._context
        try:
            worker = context.workers.register(described())
        except (ProtocolError, ValueError) as error:
            self._refused.note(context, instance_id, error)
            return SharedMemoryOffer()
        if context.segment is None or worker.inline:
            return SharedMemoryOffer()
        return SharedMemoryOffer(context.segment, context.l1_bytes)

    def unregister(self, call: Call, instance_id: int) -> None:
        self._context.workers.unregister(instance_id, "unregistered")

    def _stock_worker(self, call: Call, payload: EngineDrivenRegistration) -> Worker:
        slots = payload.num_physical_slots or self._context.chunk_tokens
        # This client does not say in which order a block has its elements.
        order = self._context.order_by_processor(payload.dtype_str, payload.block_size)
        layout = ObjectLayout(
            1 if payload.use_mla else 2,
            payload.num_layers,
            slots,
            payload.hidden_dim_size,
            payload.dtype_str,
            block_slots=payload.block_size,
            order=order,
        )
        groups = (ObjectGroup(layout),)
        check_groups(self._context, payload.model_name, payload.world_size, 0, groups)
        # In a world of one there is no doubt which shard it is; others are known from their first transfer.
        shard = 0 if payload.world_size == 1 else None
        inline = self._context.segment is None
        return Worker(
            payload.instance_id,
            payload.model_name,
            payload.world_size,
            groups,
            shard,
            inline,
            proven=inline,
            connection=call.connection,
        )

    def _mapping_worker(self, call: Call, payload: WorkerRegistration) -> Worker:
        if self._context.segment is None:
            raise ProtocolError("L1 is not in shared memory, which this worker needs; make /dev/shm larger than L1")
        parts = [
            ObjectLayout(
                part.kv_axis,
                part.layers,
                part.slots,
                part.hidden,
                part.dtype,
                block_slots=part.block_slots,
                order=part.order or self._context.order_by_processor(part.dtype, part.block_slots),
            )
            for part in payload.parts
        ]
        if not parts:
            raise ProtocolError("a worker without layers")
        groups = (ObjectGroup(joined_layout(parts)),)
        check_groups(self._context, payload.model_name, payload.world_size, payload.worker_id, groups)
        return Worker(
            payload.instance_id,
            payload.model_name,
            payload.world_size,
            groups,
            payload.worker_id,
            inline=False,
            proven=True,
            connection=call.connection,
            fence_seconds=payload.fence_seconds,
        )

    # --- storing

    def prepare_store(self, call: Call, key: EngineKey, instance_id: int) -> object:
        """Chunks that are there or being written are left out; so is everything while this request has the same range
        open already (`OpenStores.add`)."""
        chunks = self._range(key, instance_id)
        if chunks is None:
            return NOTHING_TO_STORE
        if chunks.worker.inline:
            return IN_BAND
        worker, storage = chunks.worker, self._context.storage
        if not call.may_wait and not storage.has_room(chunks.space, len(chunks.hashes)):
            return ELSEWHERE  # pages have to be allocated
        store = self._reserve(call, chunks)
        if not store.references.slots:
            return NOTHING_TO_STORE
        if not self._stores.add(chunks.ticket, store):
            storage.discard(store.references)
            return NOTHING_TO_STORE
        if self._context.workers.find(instance_id) is not worker:
            self._stores.remove(chunks.ticket, store)
            storage.discard(store.references)  # it has left meanwhile, and was not given them
            return NOTHING_TO_STORE
        return PrepareStoreReply(
            StoreContext(self._descriptors(worker.layout, store.references.slots), tuple(store.indexes))
        )

    def _reserve(self, call: Call, chunks: _Range) -> OpenStore:
        token, patience = chunks.worker.token, store_patience(call)
        return OpenStore(chunks.worker, *self._context.storage.reserve(token, chunks.space, chunks.hashes, patience))

    def commit_store(self, call: Call, key: EngineKey, instance_id: int, data: memoryview) -> object:
        if len(data) and not call.may_wait:
            return ELSEWHERE  # bytes have to be copied
        chunks = self._range(key, instance_id)
        if chunks is None:
            self._give_back(key, instance_id)
            return False
        storage, worker = self._context.storage, chunks.worker
        if not call.may_wait and not storage.is_quick(len(chunks.hashes) * chunks.space.payload_bytes):
            return ELSEWHERE  # bytes have to be read
        if len(data) and worker.proven and not worker.inline:
            # It has mapped L1 before: what it prepared may be in the hands of a thread that still writes it there.
            return self._commit_inband(call, key, chunks, None, data)
        store = self._stores.take(instance_id, chunks.ticket)
        if len(data):
            return self._commit_inband(call, key, chunks, store, data)
        if store is None:
            return False
        worker.proven = True
        return storage.publish(store.references, chunks.first_chunk + store.indexes[0], key.request_id)

    def abandon_store(self, call: Call, key: EngineKey, instance_id: int) -> bool:
        """The worker could not fill what it prepared, and touches none of it any more.  True when there was something."""
        self._range(key, instance_id)  # it checks the key, and the worker has spoken
        return self._give_back(key, instance_id)

    def _give_back(self, key: EngineKey, instance_id: int) -> bool:
        """Release these slots: their worker has ended its copies, also after it was reaped.  False when there were none."""
        store = self._stores.take(instance_id, self._ticket(key)) if self._stores.has(instance_id) else None
        if store is not None:
            self._context.storage.discard(store.references)
        return store is not None

    def _commit_inband(
        self, call: Call, key: EngineKey, chunks: _Range, prepared: OpenStore | None, data: memoryview
    ) -> bool:
        """The chunks came with the commit, perhaps from a worker that was offered shared memory and could not map it;
        what was reserved for it then is filled here."""
        storage, worker = self._context.storage, chunks.worker
        store = prepared or self._reserve(call, chunks)
        try:
            tensors = self._read(chunks, data)
            worker.inline = worker.proven = True
            if not store.references.slots:
                return True
            with storage.using(store.references) as alive:
                if alive:
                    for slot, index in zip(store.references.slots, store.indexes, strict=True):
                        storage.payload(slot)[:] = tensors[index].data
        except BaseException:
            storage.discard(store.references)
            raise
        return storage.publish(store.references, chunks.first_chunk + store.indexes[0], key.request_id)

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
        if chunks is None:
            check_names(key)
            # Its commit may come after it registers.
            self._reads.ask(instance_id, self._ticket(key), is_registered=False)
            return MISS
        if not chunks.hashes:
            return MISS
        worker, storage = chunks.worker, self._context.storage
        in_band = worker.inline or not worker.proven
        is_quick = not in_band and storage.is_quick(len(chunks.hashes) * chunks.space.payload_bytes)
        if not is_quick and not call.may_wait:
            return ELSEWHERE  # bytes have to be copied or read
        self._reads.ask(instance_id, chunks.ticket)
        if in_band and call.is_congested:
            raise ProtocolError(f"instance {instance_id} asks for more bytes while it leaves answers unread")
        references = storage.acquire(worker.token, key.request_id, chunks.space, chunks.hashes, chunks.first_chunk)
        if references is None:
            return MISS
        self._reads.add(worker, chunks.ticket, references)
        if self._context.workers.find(instance_id) is not worker:
            self._forget_read(worker, chunks.ticket, references)  # it has left meanwhile
            return MISS
        slots = RetrieveContext(self._descriptors(worker.layout, references.slots))
        if not in_band:
            return PrepareRetrieveReply(True, b"", slots)
        try:
            reply = self._inband_reply(worker, references, slots)
        except BaseException:
            self._forget_read(worker, chunks.ticket, references)
            raise
        if reply is None:
            self._forget_read(worker, chunks.ticket, references)
            return MISS
        return reply

    def _inband_reply(self, worker: Worker, references: SlotReferences, slots: RetrieveContext) -> object | None:
        """The bytes themselves; None when the references have ended meanwhile."""
        storage = self._context.storage
        if self._reads.of(worker) > INBAND_READS_MAX:
            raise ProtocolError(
                f"instance {worker.instance_id} has {INBAND_READS_MAX} in-band retrieves open; it must commit them"
            )
        # Until it has stored through shared memory, it is not known whether it could map it: it gets both.
        with storage.using(references) as alive:
            if not alive:
                return None
            payloads = [storage.payload(slot) for slot in references.slots]
            return inband_reply(worker.layout.dtype, worker.layout.shape, payloads, None if worker.inline else slots)

    def _forget_read(self, worker: Worker, ticket: Ticket, references: SlotReferences) -> None:
        """The worker was not given it."""
        self._reads.remove(worker, ticket, references)
        self._context.storage.release(references)

    def commit_retrieve(self, call: Call, key: EngineKey, instance_id: int) -> bool:
        """Follows each prepare, also one that missed, and may come from a worker that was taken for dead."""
        chunks = self._range(key, instance_id)
        if chunks is not None or self._reads.has(instance_id):
            for references in self._reads.commit(instance_id, chunks.ticket if chunks else self._ticket(key)):
                self._context.storage.release(references)
        return True

    # --- what they share

    def _range(self, key: EngineKey, instance_id: int) -> _Range | None:
        chunks = transfer_range(self._context, key, instance_id)
        if chunks is None:
            return None
        ticket = self._ticket(key, chunks.hashes)
        return _Range(chunks.worker, chunks.space(self._context), chunks.hashes, chunks.first_chunk, ticket)

    def _ticket(self, key: EngineKey, hashes: Sequence[bytes] | None = None) -> Ticket:
        """`hashes` are those of the range, where they are known."""
        if hashes is None:
            first = key.start // self._context.chunk_tokens
            hashes = self._context.hasher.chunk_hashes(key.token_ids, key.end)[first:]
        return Ticket(key.request_id, key.cache_salt, key.start, key.end, hashes[-1] if hashes else b"")

    def _descriptors(self, layout: ChunkLayout, slots: Sequence[int]) -> tuple[SlotDescriptor, ...]:
        offset = self._context.storage.payload_offset
        length, shape, dtype = layout.payload_bytes, layout.shape, layout.dtype
        return tuple(SlotDescriptor(offset(slot), length, shape, dtype) for slot in slots)

    def _left(self, worker: Worker) -> None:
        """Its references have ended; forget them here."""
        self._stores.forget(worker)
        self._reads.forget(worker)


def open_engine_driven(settings: PluginSettings | None, context: ModuleContext) -> EngineDrivenModule:
    return EngineDrivenModule(context)
