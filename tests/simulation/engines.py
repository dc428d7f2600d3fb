"""Simulated engines: what our workers do, and clients that misbehave within the protocol.

`NodeEngine` runs the code of our connector's worker
(`lmcache_vllm.transfer_*`) over simulated pages.  `BurstClient` sends many requests before it reads an answer.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import zmq as real_zmq

from lmcache_client import operations as ops
from lmcache_client.engine_key import encode_tokens
from lmcache_core import EngineChannel, LayoutPart, LMCacheError
from lmcache_vllm.metadata import Transfer
from lmcache_vllm.placement import Placement
from lmcache_vllm.transfer_load import load
from lmcache_vllm.transfer_session import ServerSession
from lmcache_vllm.transfer_store import store
from lmcache_vllm.transfer_task import TransferTask
from tests.simulation.oracle import PAYLOAD_BYTES, Holder, ViolationError, Watch, content
from tests.simulation.runtime import Process
from tests.simulation.sockets import the_zmq
from tests.simulation.stock_engine import StockEngine
from tests.simulation.world import (
    CHUNK_TOKENS,
    ENDPOINT,
    FREEZES_PER_LOAD,
    HEARTBEAT_SECONDS,
    LAYOUT,
    MODEL,
    SALTS,
    TIMEOUT_SECONDS,
    Claimed,
    Shard,
    World,
    chunk_hashes,
)


class NodeEngine:
    """Our connector's worker: one thread loads, one stores, as in `WorkerSide`; its scheduler asks over a channel."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.process = Process(name)
        self.processes = [self.process]
        self.process.on_killed.append(lambda: world.oracle.forget(self.process))
        self._numbers = itertools.count()
        self._placement = Placement(MODEL, 1, 0)
        world.runtime.spawn(self.process, f"{name}-main", self._main)

    def _main(self) -> None:
        self.scheduler = EngineChannel(ENDPOINT, TIMEOUT_SECONDS)
        self.session = ServerSession(
            ENDPOINT,
            self._placement,
            lambda chunk_tokens: SimulatedPages(self),  # type: ignore[arg-type, return-value]
            timeout_seconds=TIMEOUT_SECONDS,
            heartbeat_seconds=HEARTBEAT_SECONDS,
            on_lost=lambda: None,
        )
        self.session.start(2.0)
        for kind in (self._loads, self._stores):
            self.world.runtime.spawn(self.process, f"{self.process.name}-{kind.__name__[1:]}", kind)
        self.world.runtime.spawn(self.process, f"{self.process.name}-heartbeat", self._beat)

    def _beat(self) -> None:
        while True:
            self.world.runtime.sleep(HEARTBEAT_SECONDS)
            with suppress(LMCacheError):
                self.scheduler.ping(None, timeout_seconds=HEARTBEAT_SECONDS)

    def _loads(self) -> None:
        runtime = self.world.runtime
        while not self.world.calm:
            runtime.sleep(runtime.random.expovariate(1 / 0.05))
            tokens, salt = self.world.prompt(), runtime.random.choice(SALTS)
            request = f"{self.process}-{next(self._numbers)}"  # as vLLM's, which no other engine uses
            with suppress(LMCacheError):
                key = Shard().lookup_key(tokens, salt, request, len(tokens))
                hits = self.scheduler.submit_lookup(key, wait_seconds=5.0).result()
                if hits:
                    self._load(tokens, salt, request, hits * CHUNK_TOKENS)
                self.scheduler.tell(ops.END_SESSION, request)
            self.world.ended += 1

    def _load(self, tokens: tuple[int, ...], salt: str, request: str, end: int) -> None:
        task = TransferTask(self._transfer(tokens, salt, request, 0, end))
        self.loaded: dict[int, tuple[bytes, Watch]] = {}
        outcome = load(task, self.session, self._placement)
        failed = set(outcome.failed_chunks)
        for chunk, chunk_hash in enumerate(chunk_hashes(tokens)[: task.chunks]):
            if chunk not in failed:
                found, watch = self.loaded[chunk]
                self.world.read["node"] += 1
                where = f"load of {request} by {self.process}"
                self.world.oracle.compare(found, MODEL, salt, chunk_hash, where)
                if watch.lost:
                    self.world.oracle.fail(
                        f"{where} counts what it read from slot {watch.offset}, which was given away"
                    )

    def _stores(self) -> None:
        runtime = self.world.runtime
        while not self.world.calm:
            runtime.sleep(runtime.random.expovariate(1 / 0.05))
            tokens, salt = self.world.prompt(), runtime.random.choice(SALTS)
            begin = CHUNK_TOKENS * runtime.random.randrange(len(tokens) // CHUNK_TOKENS)
            self.storing = [content(MODEL, salt, each) for each in chunk_hashes(tokens)[begin // CHUNK_TOKENS :]]
            task = TransferTask(self._transfer(tokens, salt, f"r{next(self._numbers)}", begin, len(tokens)))
            store(task, self.session, self._placement, lambda: None)
            self.world.ended += 1

    def _transfer(self, tokens: tuple[int, ...], salt: str, request: str, begin: int, end: int) -> Transfer:
        encoded = bytes(encode_tokens(tokens))
        return Transfer(next(self._numbers), request, encoded, begin, end, CHUNK_TOKENS, ((),), salt)


class SimulatedPages:
    """`ChunkPages` of an engine whose pages hold the right bytes of what it stores."""

    chunk_tokens = CHUNK_TOKENS
    payload_bytes = PAYLOAD_BYTES
    parts = (LayoutPart(LAYOUT.kv_axis, LAYOUT.layers, LAYOUT.slots, LAYOUT.hidden, LAYOUT.dtype, CHUNK_TOKENS),)
    """With the block size that stock engines say, so that both find each other's chunks."""

    def __init__(self, engine: NodeEngine) -> None:
        self._engine = engine
        self.copier = self

    def attach(self, address: int, length: int) -> None: ...

    def _place(self, address: int) -> tuple[str, int]:
        """Segment and offset."""
        session: Any = self._engine.session
        for registration in (session._current, *session._retired):
            segment = registration and registration.segment
            if segment and segment.address <= address < segment.address + segment.size_bytes:
                return segment.name, address - segment.address
        raise ViolationError(f"{self._engine.process} touches {address:x}, which is in no segment of its own")

    def detach(self, address: int) -> None: ...

    def check(self, tables: Sequence[Sequence[int]], chunks: int) -> None: ...

    def batches(self, chunks: Sequence[int]) -> Iterator[Sequence[int]]:
        for chunk in chunks:
            yield (chunk,)
            self._engine.world.pause()

    def gather(self, tables: Sequence[Sequence[int]], chunks: Sequence[int], addresses: Sequence[int]) -> int:
        world, oracle = self._engine.world, self._engine.world.oracle
        for chunk, address in zip(chunks, addresses, strict=True):
            segment, offset = self._place(address)
            right, half = self._engine.storing[chunk], PAYLOAD_BYTES // 2
            with Claimed(oracle, segment, [offset], Holder(self._engine.process, "store"), writes=True):
                ctypes.memmove(address, right[:half], half)
                world.copying(self._engine.process)  # a process may be stopped in the middle of a copy
                ctypes.memmove(address + half, right[half:], half)
        return PAYLOAD_BYTES * len(chunks)

    def scatter(
        self, tables: Sequence[Sequence[int]], chunks: Sequence[int], addresses: Sequence[int], layer: int | None = None
    ) -> int:
        engine, half = self._engine, PAYLOAD_BYTES // 2
        for chunk, address in zip(chunks, addresses, strict=True):
            segment, offset = self._place(address)
            with engine.world.oracle.watched(segment, offset, Holder(engine.process, "load")) as watch:
                first = ctypes.string_at(address, half)
                engine.world.copying(engine.process, FREEZES_PER_LOAD)
                engine.loaded[chunk] = (first + ctypes.string_at(address + half, half), watch)
        return PAYLOAD_BYTES * len(chunks)


class BurstClient:
    """Asks many things before it reads the first answer, as a stock client whose thread is busy does."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.process = Process(name)
        self.processes = [self.process]
        world.runtime.spawn(self.process, name, self._main)

    def _main(self) -> None:
        runtime, zmq = self.world.runtime, the_zmq()
        socket: Any = zmq.Context().socket(real_zmq.DEALER)
        socket.setsockopt(real_zmq.RCVHWM, 16)
        socket.connect(ENDPOINT)
        number = 0
        questions = (msgspec.msgpack.encode("noop"), msgspec.msgpack.encode(ops.GET_CHUNK_SIZE.wire_id))
        while not self.world.calm:
            for _ in range(runtime.random.choice((1, 5, 60))):
                number += 1
                with suppress(real_zmq.Again):
                    socket.send_multipart([msgspec.msgpack.encode(number), runtime.random.choice(questions)])
                if runtime.random.random() < 0.1:
                    runtime.sleep(0.001)
            runtime.sleep(runtime.random.expovariate(1 / 0.5))
            for _ in range(200):
                while socket.getsockopt(real_zmq.EVENTS) & real_zmq.POLLIN:
                    socket.recv_multipart()
                    self.world.answered += 1
                runtime.sleep(0.002)
        while True:
            while socket.getsockopt(real_zmq.EVENTS) & real_zmq.POLLIN:
                socket.recv_multipart()
                self.world.answered += 1
            runtime.sleep(0.01)


AnyEngine = StockEngine | NodeEngine | BurstClient
