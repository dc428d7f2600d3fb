"""The whole server, its backends and its engines under one seed.

    python -m tests.simulation --seed 7 --steps 20000

prints `ok`, or what went wrong with the command that shows it again.  The server is the one that `app.build` makes, with all
of its threads (runtime.py, stand_ins.py); engines are in engines.py, the network in network.py and sockets.py, the backend in
l2.py, and what must hold in oracle.py.
"""

from __future__ import annotations

import gc
import importlib
import os
import pkgutil
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import zmq

import lmcache_client
import lmcache_core
from lmcache_core.app.build import build
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.app.server import Server
from lmcache_core.app.settings import ServerSettings
from lmcache_core.server import peers
from lmcache_policies import l2_eviction
from tests.simulation.engines import AnyEngine, BurstClient, NodeEngine
from tests.simulation.l2 import Media, insert_media
from tests.simulation.network import Connection, Network, PeerSocket, owner_of
from tests.simulation.oracle import Oracle, ViolationError
from tests.simulation.runtime import DeadlockError, Process, Runtime
from tests.simulation.sockets import ZMQ
from tests.simulation.stand_ins import installed
from tests.simulation.stock_engine import StockEngine
from tests.simulation.world import Shard, World

REAP_SECONDS: Final = 2.0
SLOT_BYTES: Final = 1 << 16
QUIET_SECONDS: Final = 300.0
"""Simulated time in which everything must come to its end once no request begins and no fault happens any more."""
READS: Final = {"stock": 5000, "inband": 45000, "node": 45000}
"""After this many steps each kind of engine has read chunks.  Few are read by some: a lost answer keeps a thread of an engine
waiting for 30 s.  A pair shares its chunks with nothing else, so that only many seeds together must have read by it."""
SIMULATED: Final = ("lmcache_client", "lmcache_core", "lmcache_policies", "lmcache_vllm")
SKIPPED: Final = "lmcache_core.app.console"


@dataclass(frozen=True)
class Result:
    seed: int
    steps: int
    violation: str = ""
    trace: str = ""
    figures: dict[str, float] = field(default_factory=dict)


def import_everything() -> None:
    """What is imported later would not see the simulation."""
    for package in (lmcache_client, lmcache_core, l2_eviction):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.startswith(SKIPPED) and not module.name.endswith("__main__"):
                importlib.import_module(module.name)


class Simulation:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.runtime = Runtime(seed)
        self.network = Network(self.runtime)
        self.oracle = Oracle(self.network)
        self.media = Media(self.oracle)
        self.world = World(self.runtime, self.oracle, self._freeze_copying)
        self.server: Server | None = None
        self.server_process = Process("server")
        self.engines: list[AnyEngine] = []
        self.kills = self.freezes = 0
        self._engine_numbers = iter(range(1 << 30))
        self._plugins = load_plugins(("tests.simulation.l2", "policies"))

    # --- a run

    def run(self, steps: int) -> Result:
        violation = ""
        replaced: list[tuple[object, object]] = [
            (zmq, ZMQ(self.network)),
            (peers.PeerSocket, PeerSocket),
            (peers.owner_of, owner_of),
        ]
        with installed(self.runtime, SIMULATED, replaced):
            insert_media(self.media)
            try:
                self._start_server()
                for make in (self._stock, self._stock, self._inband, self._pair, self._node, self._node, self._burst):
                    make()
                while self.runtime.steps < steps:
                    self._step()
                    self._fault()
                self._quiet()
                self._check_that_something_happened()
            except (ViolationError, DeadlockError) as error:
                violation = f"{type(error).__name__}: {error}"
            except Exception:  # noqa: BLE001 - every failure is reported with the seed
                violation = traceback.format_exc()
        figures = {
            "seconds": self.runtime.now - 1000,
            "requests": self.world.ended,
            "compared": self.oracle.chunks_compared,
            **{f"read_by_{kind}": count for kind, count in sorted(self.world.read.items())},
            "cuts": self.network.cuts,
            "freezes": self.freezes,
            "kills": self.kills,
            "objects_in_l2": len(self.media.objects),
            "deleted_in_l2": self.media.deleted,
            "pinned_in_l2": self.media.refused,
        }
        return Result(self.seed, self.runtime.steps, violation, self.runtime.trace, figures)

    def _step(self) -> None:
        runtime = self.runtime
        runtime.step()
        if self.oracle.violation is not None:
            raise self.oracle.violation
        if self.network.wronged:
            raise ViolationError(self.network.wronged)
        if runtime.crashed:
            task, error = runtime.crashed[0]
            frames = "".join(traceback.format_exception(error))
            raise ViolationError(f"thread {task.name} of {task.process} ended by an exception:\n{frames}")
        if self.server is not None and not self.server_process.dead:
            if not runtime.steps % 8:
                self.oracle.audit(self.server)
            if not runtime.steps % 64:
                self.oracle.answers(self.server_process, runtime.now)
                self._check_registered(self.server)
        if not runtime.steps % 4096:
            gc.collect()

    def _check_registered(self, server: Server) -> None:
        """A worker that pings without a gap stays registered, however long the server itself was frozen."""
        segment = server._parts.tiers.cache._arena.region.name
        for engine in self.engines:
            for worker in engine.workers if isinstance(engine, StockEngine) else ():
                if worker.is_steady(segment) and server._parts.engine_port.workers.find(worker.instance_id) is None:
                    self.oracle.fail(f"{worker.process} is dropped, although it has pinged without a gap")

    def _fault(self) -> None:
        dice = self.runtime.random.random()
        if dice > 0.004:
            return
        pick = self.runtime.random
        if dice < 0.0012:
            engine = pick.choice(self.engines)
            self._freeze(pick.choice(engine.processes), pick.choice((0.05, 0.5, 1.5 * REAP_SECONDS, 3 * REAP_SECONDS)))
        elif dice < 0.0016:
            self._freeze(self.server_process, pick.choice((0.05, 0.5, 2 * REAP_SECONDS)))
        elif dice < 0.0022 and self.network.connections:
            self._cut(pick.choice(list(self.network.connections)))
        elif dice < 0.0025:
            self._kill_engine(pick.choice(self.engines))
        elif dice < 0.00258:
            self._kill_server()

    def _freeze_copying(self, process: Process) -> None:
        seconds = self.runtime.random.choice((2 * REAP_SECONDS, 3 * REAP_SECONDS))
        self.runtime.at(self.runtime.now, self._freeze, process, seconds)

    def _cut(self, connection: Connection) -> None:
        """Not while its process is frozen, or soon before: on one machine a connection ends with its process, which touches
        nothing any more, or while it runs."""
        if not connection.client.frozen:
            self.oracle.note(f"a connection of {connection.client} is cut")
            connection.cut()

    def _freeze(self, process: Process, seconds: float) -> None:
        if self.runtime.now - self.network.cut_at.get(process, 0.0) < REAP_SECONDS:
            return
        self.freezes += 1
        self.oracle.note(f"{process} is frozen for {seconds} s")
        self.runtime.freeze(process, seconds)

    def _kill_engine(self, engine: AnyEngine) -> None:
        self.kills += 1
        self.oracle.note(f"{engine.process} is killed")
        for process in engine.processes:
            self.runtime.kill(process)
        self.engines.remove(engine)
        if isinstance(engine, StockEngine):
            (self._pair if engine.is_pair else self._stock if engine.maps else self._inband)()
        else:
            (self._node if isinstance(engine, NodeEngine) else self._burst)()

    def _kill_server(self) -> None:
        server, self.server = self.server, None
        if server is None:
            return
        self.kills += 1
        self.oracle.note("the server is killed")
        self.runtime.kill(self.server_process)
        self.oracle.forget(self.server_process)
        self._bury(server)
        self.server_process = Process("server")
        self.runtime.at(self.runtime.now + self.runtime.random.random() * 3, self._start_server)

    def _bury(self, server: Server) -> None:
        """What the kernel gives back when a process ends."""
        arena: Any = server._parts.tiers.arena
        arena.close()

    def _start_server(self) -> None:
        self.runtime.spawn(self.server_process, "main", self._serve)

    def _serve(self) -> None:
        given: dict[str, Any] = {
            "host": "127.0.0.1",
            "port": 5555,
            "chunk_size": 16,
            "l1_size_gb": 0.0025,  # 40 slots
            "l1_align_bytes": SLOT_BYTES,
            "shm_name": f"simulated-{os.getpid()}-{self.runtime.random.getrandbits(40):x}",
            "disable_observability": True,
            "native": "off",
            "l1_read_ttl_seconds": 8.0,
            "l1_write_ttl_seconds": 10.0,
            "worker_reap_timeout_seconds": REAP_SECONDS,
            "worker_registration_grace_seconds": 20.0,
            "lookup_timeout_seconds": 3.0,
            "l2_timeout_seconds": 4.0,
            "session_ttl_seconds": 20.0,
            "send_patience_seconds": 5.0,
            "max_workers": 2,
            "l2_adapter": ({"type": "simulated", "eviction": {"eviction_policy": "LRU"}},),
        }
        server = build(ServerSettings(**given), self._plugins)
        server.start()
        self.oracle.note("a server has started")
        self.server = server

    def _quiet(self) -> None:
        """Faults and new requests end, and then everything else does.  When the engines are gone, nothing is held."""
        self.world.calm, self.media.faulty = True, False
        for process in (self.server_process, *(process for engine in self.engines for process in engine.processes)):
            self.runtime.thaw(process)
        self._until_nothing_is_left(self._started, "all engines are calm")
        for engine in self.engines:
            for process in engine.processes:
                self.runtime.kill(process)
        self._until_nothing_is_left(self._held, "all engines are gone")
        self._stop_server()

    def _check_that_something_happened(self) -> None:
        """A run in which nothing can be stored or read finds nothing."""
        for kind, steps in READS.items():
            if self.runtime.steps > steps and not self.world.read[kind]:
                raise ViolationError(f"{kind} engines have read nothing in {self.runtime.steps} steps")

    def _until_nothing_is_left(self, look: Callable[[], dict[str, object]], since: str) -> None:
        end = self.runtime.now + QUIET_SECONDS
        while left := {name: value for name, value in look().items() if value}:
            if self.runtime.now > end:
                raise ViolationError(f"{QUIET_SECONDS:.0f} s after {since} there is still something left: {left}")
            for _ in range(64):
                self._step()

    def _started(self) -> dict[str, object]:
        return {
            "server is down": self.server is None,
            "claims": self.oracle.claims,
            "owed": sum(len(connection.owed) for connection in self.network.connections),
        }

    def _held(self) -> dict[str, object]:
        assert self.server is not None
        counts = self.server._parts.tiers.storage.state_counts()
        return {
            "slot state counts do not add up": not counts.is_balanced,
            "held": counts.held,
            "quarantined": counts.quarantined,
            "lookups": self.server._parts.tiers.storage.lookups_open,
            "workers": len(self.server._parts.engine_port.workers.registered()),
        }

    def _stop_server(self) -> None:
        server, stopped = self.server, []
        assert server is not None
        self.runtime.spawn(self.server_process, "stop", lambda: stopped.append(server.stop(5.0)))
        end = self.runtime.now + 60
        while not stopped:
            self.runtime.step()
            if self.runtime.now > end:
                raise ViolationError("an orderly stop did not end")
        self.server = None

    # --- engines

    def _stock(self) -> None:
        self._add(StockEngine(self.world, f"stock-{next(self._engine_numbers)}", 6))

    def _inband(self) -> None:
        self._add(StockEngine(self.world, f"inband-{next(self._engine_numbers)}", 3, maps=False))

    def _pair(self) -> None:
        """Two workers, each with a shard of another model."""
        shards = (Shard("pair", 2, 0), Shard("pair", 2, 1))
        self._add(StockEngine(self.world, f"pair-{next(self._engine_numbers)}", 5, shards=shards))

    def _node(self) -> None:
        self._add(NodeEngine(self.world, f"node-{next(self._engine_numbers)}"))

    def _burst(self) -> None:
        self._add(BurstClient(self.world, f"burst-{next(self._engine_numbers)}"))

    def _add(self, engine: AnyEngine) -> None:
        self.engines.append(engine)
