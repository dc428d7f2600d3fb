"""What modules that blend ask for: tokens of chunks into pages in host memory, K turned to another position, and rows copied
as they are."""

from __future__ import annotations

import ctypes
import platform
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar

import msgspec

from lmcache_client import RopeTables
from lmcache_core import ModuleContext, ProtocolError, SlotReferences, Worker
from lmcache_kv_layout import NO_BLOCK, ChunkRows, EngineKVFormat, KVPlaces, LayoutError, PagedGroup
from lmcache_transfer_torch.cpu.memory import CpuMemory
from lmcache_transfer_torch.cpu.segment import copy_of_segment
from lmcache_transfer_torch.descriptors import CpuStorage, read_views
from lmcache_transfer_torch.device import DeviceError, TransferJob, TransferPart
from lmcache_transfer_torch.registered import RegisteredWorker
from lmcache_transfer_torch.registry import Registry
from lmcache_transfer_torch.transfer import IN_FLIGHT_MAX, Transfers

if TYPE_CHECKING:
    from lmcache_kv_layout import Rotary

T = TypeVar("T")

TABLES_MAX: Final = 8
TABLE_BYTES_MAX: Final = 256 << 20
"""Of one table's storage: a million positions of 64 pairs in half precision."""
IS_X86: Final = platform.machine() in ("x86_64", "AMD64")


class _Rope(NamedTuple):
    registered: RegisteredWorker
    """Whose it is: a worker that registers anew shares it anew."""
    rows: tuple[ChunkRows, ...]
    """Of each kernel group."""


class RowMover:
    """Implements `lmcache_core.PageMover`.  Keeps the rotary tables of workers until they leave."""

    def __init__(
        self,
        context: ModuleContext,
        workers: Registry,
        transfers: Transfers,
        addresses: Callable[[SlotReferences], list[int]],
    ) -> None:
        self._context, self._workers, self._transfers, self._addresses = context, workers, transfers, addresses
        self._ropes: dict[int, _Rope] = {}
        """By token of the worker."""
        context.workers.on_leave(self.drop_rope)

    def __len__(self) -> int:
        """Workers that have shared theirs."""
        return len(self._ropes)

    def check_connection(self, worker: Worker, connection: bytes) -> None:
        self._workers.check_connection(worker, connection)

    def register_rows(
        self,
        instance_id: int,
        connection: bytes,
        tensors: Sequence[msgspec.msgpack.Ext],
        model_name: str,
        world_size: int,
    ) -> None:
        self._workers.register_rows(instance_id, connection, tensors, model_name, world_size)

    def copy_rows(
        self,
        worker: Worker,
        held: SlotReferences,
        rows: Sequence[int],
        into_slots: bool,
        ready: bytes,
        finish: Callable[[bool], bool],
    ) -> tuple[bytes, bool]:
        registered = self._workers.find(worker)
        if registered is None or len(registered.groups) != 1:
            raise ProtocolError("the worker has not registered one kernel group for the server to copy")
        (group,) = registered.groups
        wanted = len(held.slots) * group.blocks_per_chunk(self._context.chunk_tokens)
        if len(rows) != wanted:
            raise ProtocolError(f"{len(rows)} rows for {len(held.slots)} chunks; {wanted} are needed")
        if rows and not NO_BLOCK <= min(rows) <= max(rows) < group.blocks:
            raise ProtocolError(f"row {max(rows)} is asked for; the worker has the rows 0 to {group.blocks - 1}")
        if not self._transfers.has_room(worker.token):
            raise ProtocolError(f"the worker has {IN_FLIGHT_MAX} transfers under way; it must wait for them")
        job = TransferJob((TransferPart(0, array("q", rows), self._addresses(held)),), ready)

        def finished(arrived: bool) -> bool:
            done = finish(arrived)
            moved = len(held.slots) * registered.chunk_bytes if done else 0
            self._transfers.moved(**{"stored" if into_slots else "retrieved": moved})
            return done

        memory = registered.memory
        submit = partial(memory.submit_gather if into_slots else memory.submit_scatter, job)
        return self._transfers.begin(worker.token, [held], submit, finished)

    def share_rope(self, worker: Worker, rope: RopeTables) -> None:
        registered, _ = self._in_host_memory(worker)
        if len(rope.tables) > TABLES_MAX:
            raise ProtocolError(f"{len(rope.tables)} rotary tables; a worker has {TABLES_MAX} at most")
        style: Literal["neox", "gptj"] = "neox" if rope.is_neox else "gptj"
        rotaries = [_rotary(number, table, style) for number, table in enumerate(rope.tables)]
        rows = []
        for group in registered.groups:
            at = group.engine_group_id
            size = _listed(rope.head_sizes, at, rope.head_size, "group_head_size")
            rotary = _chosen(rotaries, rope, at)
            try:
                rows.append(ChunkRows(_with_places(group, size), rotary, size, self._context.chunk_tokens))
            except LayoutError as error:
                raise ProtocolError(f"engine group {at}: {error}") from None
        self._ropes[worker.token] = _Rope(registered, tuple(rows))
        if self._context.workers.find(worker.instance_id) is not worker:
            self.drop_rope(worker)  # it has left meanwhile

    def drop_rope(self, worker: Worker) -> None:
        self._ropes.pop(worker.token, None)

    def move(
        self,
        worker: Worker,
        held: SlotReferences,
        places: Sequence[tuple[int, int]],
        block_ids: Sequence[Sequence[int]],
        ready: bytes,
        finish: Callable[[bool], bool],
    ) -> tuple[bytes, bool]:
        """The event has happened: workers in host memory have no others."""
        registered, memory = self._in_host_memory(worker)
        rope = self._ropes.get(worker.token)
        if rope is None or rope.registered is not registered:
            raise ProtocolError(f"instance {worker.instance_id} has not shared its rope: cb_register_rope comes first")
        if len(registered.plans) > 1:
            raise ProtocolError(
                f"instance {worker.instance_id} keeps a chunk in several objects, whose tokens stay together"
            )
        (plan,) = registered.plans
        addresses = self._addresses(held)
        tokens = range(self._context.chunk_tokens)
        writes: list[Callable[[], int]] = []
        try:
            for region in plan.regions:
                at = registered.groups[region.group].engine_group_id
                ids = _listed(block_ids, at, (), "block_ids")
                blocks = [NO_BLOCK if block == registered.null_block else block for block in ids]
                prepare, bases = rope.rows[region.group].prepare, memory.bases[region.group]
                writes += [
                    prepare(bases, blocks, address + region.offset, tokens, new, new - old)
                    for address, (old, new) in zip(addresses, places, strict=True)
                ]
        except LayoutError as error:
            raise ProtocolError(str(error)) from None

        def finished(arrived: bool) -> bool:
            if arrived:
                self._transfers.moved(retrieved=len(places) * plan.layout.payload_bytes)
            return finish(arrived)

        return self._transfers.begin(worker.token, [held], partial(memory.submit_writes, writes), finished)

    def _in_host_memory(self, worker: Worker) -> tuple[RegisteredWorker, CpuMemory]:
        registered = self._workers.find(worker)
        if registered is None:
            raise ProtocolError(f"instance {worker.instance_id} copies itself: register_kv_cache comes first")
        if not isinstance(registered.memory, CpuMemory):
            raise ProtocolError(
                f"instance {worker.instance_id} has its pages on a device: tokens are moved in host memory"
            )
        return registered, registered.memory


def _rotary(number: int, table: msgspec.msgpack.Ext, style: Literal["neox", "gptj"]) -> Rotary:
    """Raises ProtocolError for what is not a table of rotations in host memory."""
    from lmcache_kv_layout import Rotary  # imports numpy, which a server without such workers does not need

    _, (storage,), (view,) = read_views([table])
    elements_bytes = prod(view.shape) * view.item_bytes  # of a view that shows elements twice: more than its storage
    if not isinstance(storage, CpuStorage) or max(storage.nbytes, elements_bytes) > TABLE_BYTES_MAX:
        raise ProtocolError(
            f"rotary table {number} is not in host memory, or in a storage of more than {TABLE_BYTES_MAX >> 20} MiB"
        )
    try:
        # A copy by the kernel: the worker may take the memory away meanwhile.
        content = bytearray(copy_of_segment(storage.shm_name, storage.nbytes))
        return Rotary.at(_address(content), view, style)
    except (DeviceError, LayoutError) as error:
        raise ProtocolError(f"rotary table {number}: {error}") from None


def _address(content: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(content))


def _listed(values: Sequence[T], at: int, otherwise: T, what: str) -> T:
    """The value of an engine group; `otherwise` where none are given."""
    if not values:
        return otherwise
    if at >= len(values):
        raise ProtocolError(f"{what} has {len(values)} entries, and none for engine group {at}")
    return values[at]


def _chosen(rotaries: Sequence[Rotary], rope: RopeTables, at: int) -> Rotary | None:
    """None where K of the engine group is not turned."""
    number = _listed(rope.table_of, at, 0 if rotaries else -1, "group_to_cache")
    if not -1 <= number < len(rotaries):
        raise ProtocolError(f"group_to_cache names table {number} for engine group {at}; there are {len(rotaries)}")
    rotary = None if number < 0 else rotaries[number]
    window: Any = _listed(rope.windows, at, None, "group_rot")
    if rotary is None or window is None:
        return rotary
    if window and tuple(window) != (0, rotary.rotary_dim):
        raise ProtocolError(
            f"group_rot of engine group {at} is {list(window)[:4]}; K is turned from its first element on, over the "
            f"{rotary.rotary_dim} of its table"
        )
    return rotary if window else None


def _with_places(group: PagedGroup, head_size: int) -> PagedGroup:
    """With the places of K and V in pages of vLLM on the CPU, which does not say them (docs/engines/kv-layouts.md)."""
    is_vec = IS_X86 and group.format is EngineKVFormat.NL_X_NB_NH_BS_CS and group.block_slots and not group.order
    if not is_vec or 2 * head_size * group.item_bytes != group.head_bytes:
        return group
    return replace(group, places=KVPlaces.transposed(group, head_size))
