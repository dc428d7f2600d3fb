"""Payloads and results of the engine protocol, as they are on the wire: maps keyed by field name, in this order.

Unknown keys are ignored and types are strict (no bool for an int, no text for bytes); both are msgspec's defaults.
Renaming a field changes the protocol.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType


class ClientHello(msgspec.Struct, frozen=True):
    """Who asks; for the server's log alone."""

    client: str = ""


class ServerHello(msgspec.Struct, frozen=True):
    """Which server this is.  Fields that a later version adds are ignored by an earlier client."""

    boot_id: str
    """Another one after each start: what was registered or held under an earlier one is gone."""
    instance_id: str
    """As the operator called it (`--instance-id`), or another one after each start."""
    version: str
    chunk_tokens: int
    segment: str = ""
    """Name of L1's shared-memory segment; empty where chunks travel over the socket."""
    l1_bytes: int = 0
    """Size of L1, and of the segment where there is one."""
    operations: tuple[str, ...] = ()
    """Names of what is answered by more than its negative value, sorted."""
    worker_timeout_seconds: float = 0.0
    """Seconds of silence after which a worker counts as dead; 0: never."""


class EngineDrivenRegistration(msgspec.Struct, frozen=True):
    """A worker that moves its KV itself: who it is and the shape of its chunks."""

    instance_id: int
    model_name: str
    world_size: int
    block_size: int
    num_layers: int
    hidden_dim_size: int
    dtype_str: str
    use_mla: bool
    """No K and V axis in the chunk: true for MLA and for all layouts that fuse K and V."""
    num_physical_slots: int | None = None


class LayoutPart(msgspec.Struct, frozen=True):
    """One region of a chunk: C-contiguous `[kv][layer][slot][hidden]`, the kv axis absent where it is 1."""

    kv_axis: int
    layers: int
    slots: int
    hidden: int
    dtype: str
    block_slots: int = 0
    """Slots of a block, where the elements of its slots are in an order of the engine; 0: in that of the slots."""
    order: str = ""
    """A name of that order; empty where it is not known."""


class WorkerRegistration(msgspec.Struct, frozen=True):
    """A worker that moves its KV itself, and only through shared memory: it unregisters where it cannot map L1."""

    instance_id: int
    model_name: str
    world_size: int
    worker_id: int
    """The shard whose chunks it stores and retrieves."""
    parts: tuple[LayoutPart, ...]
    """One region behind the other, without padding, in the order of the engine's groups of layers."""
    fence_seconds: float = 0.0
    """Seconds of silence towards the server after which the worker begins no copy and throws away what it has read; at most
    half of the server's time-out, or it counts as 0: no promise."""


class SharedMemoryOffer(msgspec.Struct, frozen=True):
    """The answer to a registration.  An empty name or size makes the worker send and receive its chunks in-band."""

    shm_name: str = ""
    pool_size: int = 0


class SlotDescriptor(msgspec.Struct, frozen=True, gc=False):
    """Bytes `[offset, offset + length)` of the segment, seen as a C-contiguous `dtype` array of `shape`."""

    offset: int
    length: int
    shape: tuple[int, ...]
    dtype: str


class StoreContext(msgspec.Struct, frozen=True):
    """`chunk_indices[i]` is the chunk, counted from the start of the range, that belongs into `slots[i]`.

    Both empty: nothing is to be written, and the worker reports success without a commit.  Both unset: no shared
    memory, the chunks come with the commit."""

    slots: tuple[SlotDescriptor, ...] | UnsetType = UNSET
    chunk_indices: tuple[int, ...] | UnsetType = UNSET


class PrepareStoreReply(msgspec.Struct, frozen=True):
    context: StoreContext = StoreContext()


class RetrieveContext(msgspec.Struct, frozen=True):
    """One slot per chunk of the range, in order; unset where the chunks are in `data`."""

    slots: tuple[SlotDescriptor, ...] | UnsetType = UNSET


class PrepareRetrieveReply(msgspec.Struct, frozen=True):
    """All chunks of the range or none.  A worker without shared memory takes empty `data` for a miss."""

    success: bool
    data: bytes = b""
    context: RetrieveContext = RetrieveContext()


class BlockAllocation(msgspec.Struct, frozen=True):
    """What a scheduler step gave one request.  Telemetry only."""

    req_id: str
    new_block_ids: list[int]
    new_token_ids: list[int]
