"""Which workers are registered, and where their memory is."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import msgspec

from lmcache_core import ModuleContext, ProtocolError, Refusals, Worker, check_groups
from lmcache_kv_layout import NO_BLOCK, LayoutHints, PagedGroup, TensorView, detect_groups
from lmcache_transfer_torch.config import TransferSettings
from lmcache_transfer_torch.descriptors import Storage, read_views
from lmcache_transfer_torch.device import DeviceError, WorkerMemory
from lmcache_transfer_torch.devices import Devices
from lmcache_transfer_torch.messages import BlockIds
from lmcache_transfer_torch.one_row import FORGOTTEN, NOTHING_WRITTEN, Claim, Claims, is_written
from lmcache_transfer_torch.registered import ID_MAX, RegisteredWorker, plan_groups

logger = logging.getLogger(__name__)

ANOTHER: Final = (
    "is another process that is connected: clients of TensorRT-LLM and of earlier SGLang take their process id for it, which "
    "two containers may have alike; let containers see the processes of one another (--pid=host), or give each a server"
)


class Registry:
    """Any thread.  Owns the memory of registered workers until they leave."""

    def __init__(self, context: ModuleContext, devices: Devices, settings: TransferSettings) -> None:
        self._context, self._devices, self._settings = context, devices, settings
        self._lock = threading.Lock()
        self._registered: dict[int, RegisteredWorker] = {}
        """By token of the worker."""
        self._claims = Claims()
        self._refused = Refusals()
        context.workers.on_leave(self._left)

    def __len__(self) -> int:
        return len(self._registered)

    def find(self, worker: Worker) -> RegisteredWorker | None:
        """None for a worker that has left, or that moves its bytes itself."""
        return self._registered.get(worker.token)

    def refused(self) -> dict[str, int]:
        """How often a registration was refused, by reason."""
        return self._refused.status()

    def register(self, instance_id: int, claim: Claim) -> None:
        """A worker that is refused finds the reason in log and status, and runs uncached."""
        try:
            if not 0 <= instance_id <= ID_MAX:
                raise ProtocolError(f"instance id {instance_id} does not fit 63 bits")
            if self.is_anothers(instance_id, claim.connection):
                raise _another(instance_id)
            device, registered = self._import(claim)
            try:
                if device == "cpu" and registered.one_row_groups and self._known(instance_id) is None:
                    self._wait_for_a_store(instance_id, claim)
                    registered.memory.close()
                else:
                    self._admit(instance_id, claim.model_name, claim.world_size, registered)
            except BaseException:
                registered.memory.close()
                raise
        except (ProtocolError, ValueError, DeviceError) as error:
            self._refused.note(self._context, instance_id, error)

    def register_rows(
        self,
        instance_id: int,
        connection: bytes,
        tensors: Sequence[msgspec.msgpack.Ext],
        model_name: str,
        world_size: int,
    ) -> None:
        """See PageMover.  The caller keeps the reason of a refusal."""
        if self.is_anothers(instance_id, connection):
            raise _another(instance_id)
        try:
            device, storages, views = read_views(tensors)
            rows = detect_groups([_as_pages(view) for view in views], LayoutHints("NHD"), (), device)
            registered = self._opened(device, storages, rows, NO_BLOCK, connection)
            try:
                self._admit(instance_id, model_name, world_size, registered)
            except BaseException:
                registered.memory.close()
                raise
        except (ValueError, DeviceError) as error:
            raise ProtocolError(str(error)) from None

    def is_anothers(self, instance_id: int, connection: bytes) -> bool:
        """Does a worker of this id speak on another connection?  Its blocks are not those that are meant here.  One whose
        connection is closed leaves: what speaks now may be another process with its id."""
        known = self._known(instance_id) or self._claims.find(instance_id)
        if known is None or known.connection == connection:
            return False
        if self._context.workers.is_connected(known.connection):
            return True
        self.withdraw(instance_id)
        self._context.workers.unregister(instance_id, "closed")
        return False

    def check_connection(self, worker: Worker, connection: bytes) -> None:
        """See PageMover.  A worker whose connection is closed leaves."""
        registered = self.find(worker)
        is_other = registered is not None and registered.connection != connection
        if self.is_anothers(worker.instance_id, connection) or is_other:
            raise _another(worker.instance_id)

    def _known(self, instance_id: int) -> RegisteredWorker | None:
        worker = self._context.workers.find(instance_id)
        return self.find(worker) if worker is not None else None

    def _wait_for_a_store(self, instance_id: int, claim: Claim) -> None:
        logger.info(
            "one row for each token and layer in host memory: registered with its first store instance=%d", instance_id
        )
        if (forgotten := self._claims.put(instance_id, claim)) is not None:
            self._refused.note(self._context, forgotten, FORGOTTEN)
        self._context.workers.seen(instance_id, pinged=False)  # it has its answer: no ping need tell it to come again

    def waits_for_a_store(self, instance_id: int) -> bool:
        """Must `settle` be called before this worker's first store?"""
        return instance_id in self._claims

    def settle(self, instance_id: int, block_ids: BlockIds, chunks: int) -> None:
        """A worker that waits for its first store makes it now: it is registered, or refused (see `one_row`).  Maps its
        memory.  Raises ProtocolError for blocks that cannot be its own."""
        claim = self._claims.take(instance_id)
        if claim is None:
            return
        try:
            _, registered = self._import(claim)
            admitted = False
            try:
                written = is_written(registered, block_ids, chunks)
                if written is None:
                    self._claims.put(instance_id, claim)
                elif not written:
                    raise ProtocolError(NOTHING_WRITTEN)
                else:
                    self._admit(instance_id, claim.model_name, claim.world_size, registered)
                    admitted = True
            finally:
                if not admitted:
                    registered.memory.close()
        except (ProtocolError, ValueError, DeviceError) as error:
            self._refused.note(self._context, instance_id, error)

    def withdraw(self, instance_id: int) -> None:
        """The worker leaves without having stored anything."""
        self._claims.take(instance_id)

    @property
    def waiting(self) -> int:
        """Workers that are registered with their first store."""
        return len(self._claims)

    def close(self) -> None:
        """Release the memory of every worker."""
        with self._lock:
            left = list(self._registered.values())
            self._registered.clear()
        for registered in left:
            registered.memory.close()

    def _import(self, claim: Claim) -> tuple[str, RegisteredWorker]:
        """The worker's device and memory, by its own description.  Raises ProtocolError, ValueError or DeviceError."""
        device, storages, views = read_views(claim.tensors)
        engine_groups = [group.read() for group in claim.groups]
        groups = detect_groups(views, claim.hints.read(), engine_groups, device, claim.engine)
        return device, self._opened(device, storages, groups, self._settings.null_block_id, claim.connection)

    def _opened(
        self, device: str, storages: Sequence[Storage], groups: Sequence[PagedGroup], null_block: int, connection: bytes
    ) -> RegisteredWorker:
        context, tokens = self._context, self._context.chunk_tokens
        paged = tuple(
            replace(group, order=context.order_by_processor(group.dtype, group.block_slots)) for group in groups
        )
        plans = plan_groups(paged, tokens, self._settings.separate_object_groups)
        return RegisteredWorker(self._open(device, storages, paged), paged, plans, tokens, null_block, connection)

    def _open(self, device: str, storages: Sequence[Storage], groups: Sequence[PagedGroup]) -> WorkerMemory:
        try:
            return self._devices.get(device).open_memory(storages, groups, self._context.chunk_tokens)
        except DeviceError:
            raise
        except Exception as error:  # a device's boundary: drivers raise what they like
            logger.exception("a worker's memory could not be imported device=%s", device)
            raise DeviceError(f"device {device} failed: {error}") from error

    def _admit(self, instance_id: int, model_name: str, world_size: int, registered: RegisteredWorker) -> None:
        context, groups = self._context, registered.object_groups
        check_groups(context, model_name, world_size, 0, groups)
        # In a world of one there is no doubt which shard it is; others are known from their first transfer.
        shard = 0 if world_size == 1 else None
        described = Worker(instance_id, model_name, world_size, groups, shard, inline=False, proven=True)
        worker = context.workers.register(described)
        with self._lock:
            # The same worker may come again, because it was asked to or lost an answer: where its memory is now counts.
            earlier = self._registered.get(worker.token)
            if earlier is not None and earlier.connection != registered.connection:
                raise _another(instance_id)
            self._registered[worker.token] = registered
        if earlier is not None:
            earlier.memory.close()
        if context.workers.find(instance_id) is not worker:
            self._left(worker)  # meanwhile

    def _left(self, worker: Worker) -> None:
        """Its references have ended, but for those that a device is still using."""
        with self._lock:
            registered = self._registered.pop(worker.token, None)
        if registered is not None:
            registered.memory.close()


def _another(instance_id: int) -> ProtocolError:
    """A buffer has the complement of its engine's id."""
    return ProtocolError(f"instance {max(instance_id, ~instance_id)} {ANOTHER}")


def _as_pages(view: TensorView) -> TensorView:
    """Rows `[K and V][row][elements, or heads and elements]` as pages of one slot.  Raises ProtocolError for others."""
    if len(view.shape) not in (3, 4) or view.shape[0] != 2:
        raise ProtocolError(
            f"{view} is not [2, rows, elements] or [2, rows, heads, elements], for K and V; latent attention (MLA) has one "
            "row for both, and is not served"
        )
    shape, stride = view.shape, view.stride
    heads, head = shape[2:-1] or (1,), stride[2:-1] or (stride[1],)
    return TensorView(
        view.dtype,
        (*shape[:2], 1, *heads, shape[-1]),
        (*stride[:2], stride[1], *head, stride[-1]),
        view.storage_offset,
        view.storage,
    )
