"""How a stock worker moves chunks: through the mapped segment, or in-band where it cannot map it."""

from __future__ import annotations

import ctypes
import functools
import io
import pickle
from collections.abc import Sequence
from typing import Any, Final, Protocol

from lmcache_core import EngineChannel, L1Segment, SlotDescriptor
from lmcache_devkit.stock_pickle import stock_pickle
from tests.simulation.oracle import Holder
from tests.simulation.runtime import Process
from tests.simulation.world import CHUNK_TOKENS, LAYOUT, Claimed, Shard, World, chunk_hashes

FORGOTTEN_COMMITS: Final = 0.02
"""Of the stores, those after which the engine raises before it commits."""


class Registered(Protocol):
    """What transfers need of their worker."""

    world: World
    process: Process
    worker: EngineChannel
    instance_id: int
    segment: L1Segment | None
    shard: Shard


class Transfers(Protocol):
    def retrieve(self, tokens: tuple[int, ...], salt: str, request: str, end: int) -> None: ...

    def store(self, tokens: tuple[int, ...], salt: str, request: str, begin: int, end: int) -> None: ...


class MappedTransfers:
    def __init__(self, engine: Registered) -> None:
        self._engine = engine

    def retrieve(self, tokens: tuple[int, ...], salt: str, request: str, end: int) -> None:
        engine = self._engine
        key, segment = engine.shard.key(tokens, salt, request, 0, end), engine.segment
        if segment is None:
            return
        holder = Holder(engine.process, f"retrieve of {request}")
        reply = engine.worker.prepare_retrieve(key, engine.instance_id)
        slots = reply.context.slots if reply.success and isinstance(reply.context.slots, tuple) else ()
        if segment is not engine.segment:
            slots = ()
        try:
            with self._claimed(segment, slots, holder, writes=False):
                engine.world.copying(engine.process)
                for slot, chunk_hash in zip(slots, chunk_hashes(tokens), strict=False):
                    found = ctypes.string_at(segment.payload_address(slot), slot.length)
                    engine.world.oracle.compare(
                        found, engine.shard.model, salt, chunk_hash, str(holder), rank=engine.shard.rank
                    )
                    engine.world.read["stock" if engine.shard.world_size == 1 else "pair"] += 1
                    engine.world.pause()
        finally:
            engine.worker.commit_retrieve(key, engine.instance_id)

    def store(self, tokens: tuple[int, ...], salt: str, request: str, begin: int, end: int) -> None:
        engine = self._engine
        key, segment = engine.shard.key(tokens, salt, request, begin, end), engine.segment
        if segment is None:
            return
        holder = Holder(engine.process, f"store of {request} from {begin} to {end}")
        reply = engine.worker.prepare_store(key, engine.instance_id)
        slots, indexes = reply.context.slots, reply.context.chunk_indices
        if not isinstance(slots, tuple) or not isinstance(indexes, tuple) or not slots:
            return
        if segment is not engine.segment:
            return
        hashes = chunk_hashes(tokens)[begin // CHUNK_TOKENS :]
        with self._claimed(segment, slots, holder, writes=True):
            for slot, index in zip(slots, indexes, strict=True):
                right = engine.shard.content(salt, hashes[index])
                half = len(right) // 2
                address = segment.payload_address(slot)
                ctypes.memmove(address, right[:half], half)
                engine.world.copying(engine.process)
                ctypes.memmove(address + half, right[half:], len(right) - half)
        if engine.world.runtime.random.random() < FORGOTTEN_COMMITS:
            return  # an exception in the engine: it never commits
        engine.world.oracle.note(f"{holder} is committed: {engine.worker.commit_store(key, engine.instance_id)}")

    def _claimed(self, segment: L1Segment, slots: Sequence[SlotDescriptor], holder: Holder, *, writes: bool) -> Claimed:
        return Claimed(self._engine.world.oracle, segment.name, [slot.offset for slot in slots], holder, writes)


class InbandTransfers:
    """The bytes are in the messages, also while the server does not know yet that this worker cannot map L1."""

    def __init__(self, engine: Registered) -> None:
        self._engine = engine

    def retrieve(self, tokens: tuple[int, ...], salt: str, request: str, end: int) -> None:
        engine, world = self._engine, self._engine.world
        key = engine.shard.key(tokens, salt, request, 0, end)
        reply = engine.worker.prepare_retrieve(key, engine.instance_id)
        chunks = _Unpickler(io.BytesIO(reply.data)).load() if reply.data else ()
        try:
            world.copying(engine.process)
            for found, chunk_hash in zip(chunks, chunk_hashes(tokens), strict=False):
                where = f"in-band retrieve of {request} by {engine.process}"
                world.oracle.compare(found, engine.shard.model, salt, chunk_hash, where, rank=engine.shard.rank)
                world.read["inband"] += 1
        finally:
            engine.worker.commit_retrieve(key, engine.instance_id)

    def store(self, tokens: tuple[int, ...], salt: str, request: str, begin: int, end: int) -> None:
        engine, world = self._engine, self._engine.world
        key = engine.shard.key(tokens, salt, request, begin, end)
        context = engine.worker.prepare_store(key, engine.instance_id).context
        if context.slots == ():
            return
        hashes = chunk_hashes(tokens)[begin // CHUNK_TOKENS : end // CHUNK_TOKENS]
        data = stock_pickle(LAYOUT, [engine.shard.content(salt, each) for each in hashes])
        world.copying(engine.process)
        if world.runtime.random.random() >= FORGOTTEN_COMMITS:
            engine.worker.commit_store(key, engine.instance_id, data)


class _Unpickler(pickle.Unpickler):
    """Reads chunks as bytes instead of tensors."""

    def find_class(self, module: str, name: str) -> Any:
        known = {
            "partial": functools.partial,
            "frombuffer": lambda data, dtype: bytes(data),
            "reshape": lambda data, shape: data,
            LAYOUT.dtype: LAYOUT.dtype,
        }
        return known[name]
