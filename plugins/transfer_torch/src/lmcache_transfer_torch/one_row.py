"""Workers in host memory that have one row for each token and layer: multi-query attention, or latent attention (MLA).

With vLLM 0.32 on the CPU both register the same shapes, but a layer of latent attention computes in memory of its own, which
the stock client leaves where it was when it moves what it registered (docs/engines/kv-layouts.md).  So these workers are
registered only with their first store: when there is something in the blocks that it names, their layers compute in that
memory.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from lmcache_kv_layout import NO_BLOCK
from lmcache_transfer_torch.device import TransferJob, TransferPart
from lmcache_transfer_torch.messages import BlockIds, EngineGroupInfo, Hints
from lmcache_transfer_torch.registered import RegisteredWorker

CLAIMS_MAX: Final = 256
NOTHING_WRITTEN: Final = (
    "one row for each token and layer in host memory, and nothing in the blocks of the first store: multi-head latent "
    "attention, which with vLLM 0.32 on the CPU computes in other memory than it registers; let the engine copy "
    "(lmcache.mp.mp_transfer_mode: engine_driven)"
)
FORGOTTEN: Final = (
    f"one row for each token and layer in host memory: {CLAIMS_MAX} such workers came later and stored nothing"
)


class Claim(NamedTuple):
    """What a worker said at its registration."""

    connection: bytes
    """On which it said that."""
    tensors: Sequence[msgspec.msgpack.Ext]
    model_name: str
    world_size: int
    engine: str
    hints: Hints
    groups: Sequence[EngineGroupInfo]


class Claims:
    """By instance id, of workers that have stored nothing yet.  Their memory is not mapped.  Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._claims: dict[int, Claim] = {}

    def __contains__(self, instance_id: int) -> bool:
        return instance_id in self._claims

    def __len__(self) -> int:
        return len(self._claims)

    def find(self, instance_id: int) -> Claim | None:
        return self._claims.get(instance_id)

    def put(self, instance_id: int, claim: Claim) -> int | None:
        """Returns the instance whose claim was forgotten for it."""
        with self._lock:
            oldest = next(iter(self._claims)) if len(self._claims) >= CLAIMS_MAX else None
            if oldest is not None:
                del self._claims[oldest]
            self._claims[instance_id] = claim
            return oldest

    def take(self, instance_id: int) -> Claim | None:
        with self._lock:
            return self._claims.pop(instance_id, None)


def is_written(registered: RegisteredWorker, block_ids: BlockIds, chunks: int) -> bool | None:
    """Is there something in these blocks, in each kernel group of one row?  None where a group has no whole chunk, so that
    this cannot be said.  Raises ProtocolError for blocks that cannot be the worker's, and DeviceError."""
    tables = registered.tables(block_ids, chunks)
    scratch = (ctypes.c_char * registered.chunk_bytes)()
    for group in registered.one_row_groups:
        table = tables[group]
        per_chunk = table.per_chunk
        starts = range(0, len(table.ids), per_chunk)
        ids = next((ids for at in starts if NO_BLOCK not in (ids := table.ids[at : at + per_chunk])), None)
        if ids is None:
            return None
        ctypes.memset(scratch, 0, len(scratch))
        arrived: list[bool] = []
        part = TransferPart(group, ids, (ctypes.addressof(scratch),))
        registered.memory.submit_gather(TransferJob((part,), b""), arrived.append)
        if arrived != [True] or not scratch.raw.strip(b"\0"):
            return False
    return True
