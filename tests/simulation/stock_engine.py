"""A model of the stock connector with its asynchronous context: one registration and one channel for each worker, one channel
for the scheduler, several requests at a time, no retries."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from lmcache_client import operations as ops
from lmcache_client.messages import EngineDrivenRegistration
from lmcache_core import EngineChannel, L1Segment, LMCacheError
from tests.simulation.runtime import Process
from tests.simulation.stock_transfers import InbandTransfers, MappedTransfers, Transfers
from tests.simulation.threads import Event
from tests.simulation.world import (
    CHUNK_TOKENS,
    ENDPOINT,
    HEARTBEAT_SECONDS,
    LAYOUT,
    SALTS,
    STEADY_SECONDS,
    TIMEOUT_SECONDS,
    Shard,
    World,
)


class StockWorker:
    """A process that registers, pings, and moves chunks of its shard."""

    def __init__(self, world: World, process: Process, shard: Shard, *, maps: bool) -> None:
        """`maps`: it can map the segment that the server offers."""
        self.world, self.process, self.shard = world, process, shard
        self.transfers: Transfers = MappedTransfers(self) if maps else InbandTransfers(self)
        self.segment: L1Segment | None = None
        self._is_steady = False
        self._healthy = True
        self._pinged_at = self._registered_at = 0.0
        self.ready = Event()
        process.on_killed.append(lambda: world.oracle.forget(process))
        world.runtime.spawn(process, f"{process.name}-main", self._main)

    def _main(self) -> None:
        self.instance_id = self.world.runtime.random.getrandbits(62)
        self.worker = EngineChannel(ENDPOINT, TIMEOUT_SECONDS)
        self._register()
        self.ready.set()
        self._beat()

    def _register(self) -> None:
        self.world.oracle.note(f"{self.process} registers")
        self._is_steady = False
        self._pinged_at = self._registered_at = self.world.runtime.now
        self.segment = None  # what is answered from now on may be about another server's memory
        registration = EngineDrivenRegistration(
            self.instance_id,
            self.shard.model,
            self.shard.world_size,
            CHUNK_TOKENS,
            LAYOUT.layers,
            LAYOUT.hidden,
            LAYOUT.dtype,
            True,
        )
        with suppress(LMCacheError, OSError):
            offer = self.worker.register_engine_driven(registration)
            if offer.shm_name:
                self.segment = L1Segment(offer.shm_name, offer.pool_size)
            self._is_steady = True

    def _beat(self) -> None:
        runtime = self.world.runtime
        while True:
            runtime.sleep(HEARTBEAT_SECONDS)
            self._is_steady = self._is_steady and runtime.now - self._pinged_at < STEADY_SECONDS
            self._pinged_at = runtime.now
            try:
                known = self.worker.ping(self.instance_id, timeout_seconds=HEARTBEAT_SECONDS)
            except LMCacheError:
                known = False
            if known and not self._healthy:
                self._register()
            self._healthy = known

    def is_steady(self, segment: str | None) -> bool:
        """It is registered with the server that has this segment, has kept its connection, and no two of its pings were far
        apart since."""
        world = self.world
        cut_at = world.oracle.network.cut_at.get(self.process, 0.0)
        is_there = self.segment is not None and self.segment.name == segment and cut_at < self._registered_at
        return is_there and self._is_steady and world.runtime.now - self._pinged_at < STEADY_SECONDS


class StockEngine:
    def __init__(
        self, world: World, name: str, requests: int, *, shards: Sequence[Shard] = (Shard(),), maps: bool = True
    ) -> None:
        """The scheduler is in the process of the first worker."""
        self.world = world
        self.maps = maps
        self._shards = shards
        self.processes = [Process(name), *(Process(f"{name}-shard-{shard.worker_id}") for shard in shards[1:])]
        self.process = self.processes[0]
        self.workers = [
            StockWorker(world, process, shard, maps=maps) for process, shard in zip(self.processes, shards, strict=True)
        ]
        self._numbers = itertools.count()
        self._requests = requests
        self._live: list[str] = []
        world.runtime.spawn(self.process, f"{name}-scheduler", self._main)

    @property
    def is_pair(self) -> bool:
        return len(self._shards) > 1

    def _main(self) -> None:
        world, process = self.world, self.process
        self.scheduler = EngineChannel(ENDPOINT, TIMEOUT_SECONDS)
        for worker in self.workers:
            worker.ready.wait()
        world.runtime.spawn(process, f"{process.name}-heartbeat", self._beat)
        for number in range(self._requests):
            world.runtime.spawn(process, f"{process.name}-requests-{number}", self._serve)

    def _beat(self) -> None:
        while True:
            self.world.runtime.sleep(HEARTBEAT_SECONDS)
            with suppress(LMCacheError):
                self.scheduler.ping(None, timeout_seconds=HEARTBEAT_SECONDS)

    def _everywhere(self, verb: str, *arguments: Any) -> None:
        """Have each worker do this, in its own process, and wait for all of them.  Raises what the first one raises."""
        ended = []
        for worker in self.workers[1:]:
            over = Event()
            ended.append(over)
            body = partial(self._on_worker, worker, verb, arguments, over)
            self.world.runtime.spawn(worker.process, f"{worker.process.name}-{verb}", body)
        try:
            getattr(self.workers[0].transfers, verb)(*arguments)
        finally:
            for over in ended:
                over.wait()

    def _on_worker(self, worker: StockWorker, verb: str, arguments: tuple[Any, ...], over: Event) -> None:
        try:
            with suppress(LMCacheError):
                getattr(worker.transfers, verb)(*arguments)
        finally:
            over.set()

    def _serve(self) -> None:
        runtime = self.world.runtime
        while not self.world.calm:
            runtime.sleep(runtime.random.expovariate(1 / 0.05))
            try:
                self._request()
            except LMCacheError:  # the server is away, or the connection was lost; a stock engine goes on
                runtime.sleep(0.2)
            self.world.ended += 1

    def _request(self) -> None:
        runtime = self.world.runtime
        dice = runtime.random
        tokens, salt = self.world.prompt(), dice.choice(SALTS)
        # Engines number their requests alike; a preempted request comes again under its number.
        again = self._live and dice.random() < 0.1
        request = dice.choice(self._live) if again else f"r{next(self._numbers)}"
        self._live.append(request)
        try:
            self._answer(tokens, salt, request)
        finally:
            self._live.remove(request)

    def _answer(self, tokens: tuple[int, ...], salt: str, request: str) -> None:
        dice = self.world.runtime.random
        hits = self._look_up(tokens, salt, request)
        if hits and dice.random() < 0.85:
            self._everywhere("retrieve", tokens, salt, request, hits * CHUNK_TOKENS)
        elif hits:
            self.scheduler.tell(
                ops.FREE_LOOKUP_LOCKS, self._shards[0].key(tokens, salt, request, 0, hits * CHUNK_TOKENS), 1
            )
        begin = hits * CHUNK_TOKENS if dice.random() < 0.8 else 0
        while begin < len(tokens):
            end = min(len(tokens), begin + CHUNK_TOKENS * dice.randint(1, 4))  # chunked prefill
            self._everywhere("store", tokens, salt, request, begin, end)
            begin = end
        if dice.random() < 0.9:
            self.scheduler.tell(ops.END_SESSION, request)
        if dice.random() < 0.03:
            self.scheduler.clear(force=dice.random() < 0.7)

    def _look_up(self, tokens: tuple[int, ...], salt: str, request: str) -> int:
        runtime = self.world.runtime
        end = len(tokens) // CHUNK_TOKENS * CHUNK_TOKENS
        self.scheduler.lookup(self._shards[0].lookup_key(tokens, salt, request, end), 1)
        for _ in range(200):
            hits = self.scheduler.query_prefetch_status(request)
            if hits is not None:
                return hits
            runtime.sleep(runtime.random.random() * 0.1)
        return 0
