"""An engine without a model: a scheduler's and a worker's connection, and chunks whose right bytes follow from the tokens."""

from __future__ import annotations

import mmap
import secrets
import struct
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from blake3 import blake3

from lmcache_client.client import EngineClient
from lmcache_client.engine_key import EngineKey, encode_tokens
from lmcache_client.layout import ObjectLayout
from lmcache_client.messages import EngineDrivenRegistration, SlotDescriptor
from lmcache_devkit.stock_pickle import stock_pickle

SHM_ROOT = Path("/dev/shm")


class FakeEngine:
    """One worker of `world_size`, and the scheduler of its engine.  One thread.

    Its blocks have `block_tokens`, as many as a chunk unless said otherwise: engines with others do not read its chunks.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        model: str = "model",
        world_size: int = 1,
        worker_id: int = 0,
        layers: int = 2,
        hidden: int = 64,
        dtype: str = "float32",
        block_tokens: int | None = None,
        salt: str = "",
        maps_memory: bool = True,
        timeout_seconds: float = 10.0,
    ) -> None:
        self.scheduler = EngineClient(endpoint, timeout_seconds)
        self.worker = EngineClient(endpoint, timeout_seconds)
        self.segment: mmap.mmap | None = None
        self.instance_id = secrets.randbits(62)
        try:
            self.chunk_tokens = self.scheduler.get_chunk_size()
        except BaseException:
            self.close()
            raise
        self.layout = ObjectLayout(
            1, layers, self.chunk_tokens, hidden, dtype, block_slots=block_tokens or self.chunk_tokens
        )
        self._model, self._world_size, self._worker_id, self._salt = model, world_size, worker_id, salt
        self._maps_memory = maps_memory

    def __enter__(self) -> Self:
        self.register()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def register(self) -> bool:
        """Register the worker, and map L1 if it is offered and wanted.  True when it was offered."""
        offer = self.worker.register_engine_driven(
            EngineDrivenRegistration(
                self.instance_id,
                self._model,
                self._world_size,
                self.layout.block_slots,
                self.layout.layers,
                self.layout.hidden,
                self.layout.dtype,
                True,
            )
        )
        if offer.shm_name and self._maps_memory:
            with (SHM_ROOT / offer.shm_name).open("r+b") as file:
                self.segment = mmap.mmap(file.fileno(), 0)
        return bool(offer.shm_name)

    def close(self) -> None:
        """Leave without a word, as a killed engine does."""
        self.scheduler.close()
        self.worker.close()
        if self.segment is not None:
            self.segment.close()
            self.segment = None

    # --- keys and bytes

    def key(self, tokens: Sequence[int], request: str, start: int, end: int, *, of_worker: bool = True) -> EngineKey:
        worker_id = self._worker_id if of_worker else None
        raw = encode_tokens(tokens)
        return EngineKey(self._model, self._world_size, worker_id, raw, start, end, request, self._salt, None, 1)

    def whole(self, tokens: Sequence[int]) -> int:
        """Tokens in whole chunks."""
        return len(tokens) // self.chunk_tokens * self.chunk_tokens

    def content(self, tokens: Sequence[int], chunk: int) -> bytes:
        """The right bytes of a chunk: they depend on every token up to its end, on the model, the salt and the shard."""
        end = (chunk + 1) * self.chunk_tokens
        identity = f"{self._model}\0{self._salt}\0{self._worker_id}\0{self.layout}".encode()
        return blake3(identity + struct.pack(f"<{end}I", *tokens[:end])).digest(self.layout.payload_bytes)

    # --- what a scheduler does

    def lookup(self, tokens: Sequence[int], request: str = "r") -> int:
        """Chunks that are hit."""
        return self.scheduler.lookup_hits(self.key(tokens, request, 0, self.whole(tokens), of_worker=False))

    def end(self, request: str = "r") -> None:
        self.scheduler.end_session(request)

    # --- what a worker does

    def store(self, tokens: Sequence[int], request: str = "r", start: int = 0, end: int | None = None) -> bool:
        """Store the whole chunks of a range, by shared memory if it is mapped, in-band otherwise."""
        end = self.whole(tokens) if end is None else end
        key = self.key(tokens, request, start, end)
        first = start // self.chunk_tokens
        reply = self.worker.prepare_store(key, self.instance_id)
        if self.segment is None:
            chunks = [self.content(tokens, chunk) for chunk in range(first, end // self.chunk_tokens)]
            return self.worker.commit_store(key, self.instance_id, stock_pickle(self.layout, chunks))
        slots, indexes = reply.context.slots, reply.context.chunk_indices
        if not isinstance(slots, tuple) or not isinstance(indexes, tuple):
            raise AssertionError("a worker with shared memory was offered no slots")
        if not slots:
            return True
        for slot, index in zip(slots, indexes, strict=True):
            self.write(slot, self.content(tokens, first + index))
        return self.worker.commit_store(key, self.instance_id)

    def retrieve(
        self, tokens: Sequence[int], request: str = "r", start: int = 0, end: int | None = None
    ) -> list[bytes] | None:
        """The bytes of a range's chunks, or None for a miss; shared memory only."""
        key = self.key(tokens, request, start, self.whole(tokens) if end is None else end)
        reply = self.worker.prepare_retrieve(key, self.instance_id)
        slots = reply.context.slots
        found = [self.read(slot) for slot in slots] if reply.success and isinstance(slots, tuple) else None
        self.worker.commit_retrieve(key, self.instance_id)
        return found

    def write(self, slot: SlotDescriptor, data: bytes) -> None:
        assert self.segment is not None
        self.segment[slot.offset : slot.offset + slot.length] = data

    def read(self, slot: SlotDescriptor) -> bytes:
        assert self.segment is not None
        return self.segment[slot.offset : slot.offset + slot.length]
