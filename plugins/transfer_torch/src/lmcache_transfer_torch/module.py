"""Workers whose bytes the server moves: they say where their pages lie, and then which blocks to copy.

A store or retrieve is one request.  What is copied at once (host memory) is answered when it is done; a device that goes
on by itself is answered with an event, and chunks become visible, and their references end, when it has called back.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from lmcache_core import (
    ELSEWHERE,
    Call,
    EngineKey,
    Handler,
    HandlerMode,
    ModuleContext,
    ProtocolError,
    RequestModule,
    SlotReferences,
    Storage,
    TransferRange,
    store_patience,
    transfer_range,
)
from lmcache_transfer_torch.config import TransferSettings
from lmcache_transfer_torch.device import TransferJob, TransferPart
from lmcache_transfer_torch.devices import Devices
from lmcache_transfer_torch.messages import (
    NOT_MOVED,
    REGISTER,
    RETRIEVE,
    STORE,
    UNREGISTER,
    BlockIds,
    EngineGroupInfo,
    Hints,
)
from lmcache_transfer_torch.one_row import Claim
from lmcache_transfer_torch.registered import RegisteredWorker
from lmcache_transfer_torch.registry import Registry
from lmcache_transfer_torch.row_mover import RowMover
from lmcache_transfer_torch.transfer import IN_FLIGHT_MAX, Transfers

NOTHING_TO_STORE: Final = (b"", True)
"""Everything is there, or there is no room: success, and no event to wait for."""

Answer = tuple[bytes, bool]
"""The event that the worker waits for (empty: none), and whether anything will have moved then."""


class _Filled(NamedTuple):
    """Slots of one object group that a store fills, and their chunks, counted from the start of the range."""

    references: SlotReferences
    chunks: Sequence[int]
    payload_bytes: int


class LMCacheDrivenModule(RequestModule):
    """Copies run on the thread of the worker's connection; those that are over before that has woken up, on the router's."""

    def __init__(self, context: ModuleContext, devices: Devices, settings: TransferSettings) -> None:
        self._context, self._devices = context, devices
        self._workers = Registry(context, devices, settings)
        self._transfers = Transfers(context.storage)
        self._rows = RowMover(context, self._workers, self._transfers, self._addresses)
        context.page_movers.append(self._rows)

    def handlers(self) -> Sequence[Handler]:
        # Mapping memory may take long, and so may copying it: whether it does, `_is_swift` says.
        return [
            Handler(REGISTER, self.register, HandlerMode.AFFINE, may_be_refused=False),
            Handler(UNREGISTER, self.unregister, HandlerMode.AFFINE, may_be_refused=False),
            Handler(STORE, self.store, HandlerMode.ORDERED),
            Handler(RETRIEVE, self.retrieve, HandlerMode.ORDERED),
        ]

    def status(self) -> dict[str, object]:
        counts = self._transfers.counts()
        return {
            "workers": len(self._workers),
            "workers_before_their_first_store": self._workers.waiting,
            "transfers_in_flight": counts.in_flight,
            "transfers_failed": counts.failed,
            "stored_bytes": counts.stored_bytes,
            "retrieved_bytes": counts.retrieved_bytes,
            "registrations_refused": self._workers.refused(),
            "ropes": len(self._rows),
            "devices": self._devices.status(),
        }

    def close(self) -> None:
        if self._rows in self._context.page_movers:
            self._context.page_movers.remove(self._rows)
        self._devices.close()
        self._transfers.abandon()
        self._workers.close()

    # --- registration

    def register(
        self,
        call: Call,
        instance_id: int,
        tensors: list[msgspec.msgpack.Ext],
        model_name: str,
        world_size: int,
        engine: str,
        hints: Hints,
        groups: list[EngineGroupInfo],
    ) -> None:
        """There is no answer but an empty one, also for a worker that is refused."""
        claim = Claim(call.connection, tensors, model_name, world_size, engine, hints, groups)
        self._workers.register(instance_id, claim)

    def unregister(self, call: Call, instance_id: int) -> None:
        if self._workers.is_anothers(instance_id, call.connection):
            return
        self._workers.withdraw(instance_id)
        self._context.workers.unregister(instance_id, "unregistered")

    # --- storing

    def store(self, call: Call, key: EngineKey, instance_id: int, block_ids: BlockIds, event: bytes) -> object:
        """Chunks that are there, or find no room, are skipped; so are those whose blocks the engine has not."""
        if self._workers.is_anothers(instance_id, call.connection):
            return NOT_MOVED
        if self._workers.waits_for_a_store(instance_id):
            if not call.may_wait:
                return ELSEWHERE  # its memory has to be mapped
            self._workers.settle(instance_id, block_ids, max(0, key.end - key.start) // self._context.chunk_tokens)
        if not call.may_wait and (call.others_wait or not self._is_swift(key, instance_id)):
            return ELSEWHERE
        found = self._find(call, key, instance_id)
        if found is None:
            return NOT_MOVED
        chunks, registered = found
        if not call.may_wait and not (self._fits(registered, key) and self._has_room(chunks, registered)):
            return ELSEWHERE  # it has registered anew meanwhile; or pages have to be allocated, or others to leave
        tables = registered.tables(block_ids, len(chunks.hashes))
        filled: list[_Filled] = []
        parts: list[TransferPart] = []
        try:
            for number, plan in enumerate(registered.plans):
                whole = registered.whole_chunks(plan, tables, len(chunks.hashes))
                space = chunks.space(self._context, number)
                references, indexes = self._storage.reserve(
                    chunks.worker.token, space, [chunks.hashes[chunk] for chunk in whole], store_patience(call)
                )
                if references.slots:
                    filled.append(_Filled(references, [whole[index] for index in indexes], space.payload_bytes))
                    parts += registered.parts(plan, tables, filled[-1].chunks, self._addresses(references))
        except BaseException:
            for each in filled:
                self._storage.discard(each.references)
            raise
        if not filled:
            return NOTHING_TO_STORE
        finish = functools.partial(self._stored, filled, chunks.first_chunk, key.request_id)
        return self._transfers.begin(
            chunks.worker.token,
            [each.references for each in filled],
            functools.partial(registered.memory.submit_gather, TransferJob(tuple(parts), event)),
            finish,
        )

    def _stored(self, filled: Sequence[_Filled], first_chunk: int, request_id: str, arrived: bool) -> bool:
        published = False
        for each in filled:
            if not arrived:
                self._storage.discard(each.references)
            elif self._storage.publish(each.references, first_chunk + each.chunks[0], request_id):
                published = True
                self._transfers.moved(stored=len(each.references.slots) * each.payload_bytes)
        return published

    # --- retrieving

    def retrieve(
        self, call: Call, key: EngineKey, instance_id: int, block_ids: BlockIds, event: bytes, skip_tokens: int
    ) -> object:
        """All chunks of the range, or nothing.  The first `skip_tokens` tokens, as far as they fill blocks, are the
        engine's own and stay as they are."""
        if not 0 <= skip_tokens <= key.end - key.start:
            raise ProtocolError(f"{skip_tokens} tokens to skip, in a range of {key.end - key.start}")
        if key.end % self._context.chunk_tokens:
            raise ProtocolError(f"the range {key.start} to {key.end} does not end with a chunk")
        if self._workers.is_anothers(instance_id, call.connection):
            return NOT_MOVED
        if not call.may_wait and (call.others_wait or not self._is_swift(key, instance_id)):
            return ELSEWHERE
        found = self._find(call, key, instance_id)
        if found is None or not found[0].hashes:
            return NOT_MOVED
        chunks, registered = found
        if not call.may_wait and not self._fits(registered, key):
            return ELSEWHERE  # it has registered anew meanwhile
        tables = registered.skipped(registered.tables(block_ids, len(chunks.hashes)), skip_tokens)
        held: list[tuple[SlotReferences, int]] = []
        parts: list[TransferPart] = []
        try:
            for number, plan in enumerate(registered.plans):
                first = max(chunks.first_chunk, chunks.end_chunk - (plan.window_chunks or chunks.end_chunk))
                wanted = range(first - chunks.first_chunk, len(chunks.hashes))
                space = chunks.space(self._context, number)
                references = self._storage.acquire(
                    chunks.worker.token, key.request_id, space, chunks.hashes[wanted.start :], first
                )
                if references is None:
                    self._release(held)
                    return NOT_MOVED
                held.append((references, space.payload_bytes))
                parts += registered.parts(plan, tables, wanted, self._addresses(references))
        except BaseException:
            self._release(held)
            raise
        return self._transfers.begin(
            chunks.worker.token,
            [references for references, _ in held],
            functools.partial(registered.memory.submit_scatter, TransferJob(tuple(parts), event)),
            functools.partial(self._retrieved, held),
        )

    def _retrieved(self, held: Sequence[tuple[SlotReferences, int]], arrived: bool) -> bool:
        self._release(held)
        if arrived:
            self._transfers.moved(retrieved=sum(len(references.slots) * size for references, size in held))
        return arrived

    def _release(self, held: Sequence[tuple[SlotReferences, int]]) -> None:
        for references, _ in held:
            self._storage.release(references)

    # --- what they share

    @property
    def _storage(self) -> Storage:
        return self._context.storage

    def _is_swift(self, key: EngineKey, instance_id: int) -> bool:
        """May its bytes be moved on the router's thread?  That takes no longer than waking up another one for them."""
        worker = self._context.workers.find(instance_id)
        registered = self._workers.find(worker) if worker else None
        if registered is None:
            return True  # it moves nothing
        return self._fits(registered, key)

    def _fits(self, registered: RegisteredWorker, key: EngineKey) -> bool:
        region = self._context.region
        chunks = (key.end - key.start) // self._context.chunk_tokens
        is_on_disk = region is not None and region.is_file
        size = chunks * registered.chunk_bytes
        return not is_on_disk and size <= registered.memory.swift_bytes and self._storage.is_quick(size)

    def _has_room(self, chunks: TransferRange, registered: RegisteredWorker) -> bool:
        spaces = [chunks.space(self._context, number) for number in range(len(registered.plans))]
        # Objects of several groups may be of one size, and share its slots: what each has room for, all together may not.
        return all(self._storage.has_room(space, len(spaces) * len(chunks.hashes)) for space in spaces)

    def _find(self, call: Call, key: EngineKey, instance_id: int) -> tuple[TransferRange, RegisteredWorker] | None:
        """The chunks that are meant, and whose they are; None when nothing can be moved for this worker."""
        chunks = transfer_range(self._context, key, instance_id)
        registered = self._workers.find(chunks.worker) if chunks else None
        if chunks is None or registered is None or registered.connection != call.connection:
            return None
        if not self._transfers.has_room(chunks.worker.token):
            raise ProtocolError(
                f"instance {instance_id} has {IN_FLIGHT_MAX} transfers under way; it must wait for them"
            )
        return chunks, registered

    def _addresses(self, references: SlotReferences) -> list[int]:
        """Where the payloads of held slots begin in this process.  Raises OSError where L1 is a file and the disk fails."""
        if not references.slots:
            return []
        storage, region = self._storage, self._context.region
        if region is None or (region.is_file and not region.direct_io):
            # Each is brought in before it is touched: where the disk fails under a copy, the server would end.
            return [_address(storage.payload(slot)) for slot in references.slots]
        return [region.address + storage.payload_offset(slot) for slot in references.slots]


def _address(payload: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(payload))


def open_lmcache_driven(settings: TransferSettings, context: ModuleContext) -> LMCacheDrivenModule:
    return LMCacheDrivenModule(context, Devices(settings, context), settings)
