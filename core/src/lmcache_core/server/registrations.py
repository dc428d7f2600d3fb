"""Registered engine workers: which are admitted, whether they are alive, which shards a chunk has by their layouts, and
conflicts between engines of one model name."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from lmcache_client.errors import ProtocolError
from lmcache_client.layout import ChunkLayout
from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.events import Publisher, WorkerLeft, WorkerRegistered
from lmcache_core.contracts.request_module import ModuleContext, ObjectGroup, SpaceFields, Worker
from lmcache_core.contracts.storage import Shard
from lmcache_core.model.keys import pack_kv_rank
from lmcache_core.model.names import parse_model_name, registered_name
from lmcache_core.server.request_fields import check_model_name

logger = logging.getLogger(__name__)

WORKERS_MAX = 4096
UNKNOWN_IDS_MAX = 4096
"""Unknown instance ids that are remembered as notified."""
ROUND_SECONDS: Final = 1.0
"""Between two calls of `reap`."""
SETTLED_SECONDS: Final = 2.0
STEADY_REAPS: Final = 2.0
"""Reap times of running within which a process ends each copy that it began before."""
STANDSTILL_ROUNDS: Final = 2
"""When this many rounds were missed, the process did not run (stopped, suspended, no CPU), and what workers sent
meanwhile is still to be read."""


class WorkerReferences(Protocol):
    """What storage holds for workers, by token: two verbs of `contracts.storage.Storage`."""

    def end_worker(self, worker: int) -> None: ...

    def quarantine_worker(self, worker: int, ends_reads: bool) -> bool: ...


@dataclass(slots=True, eq=False)
class _Registration:
    worker: Worker
    seen: float
    since: float
    steady_since: float
    """No two signs of life since then were more than half of the reap time apart."""
    pinged: bool = False


class Registrations:
    """Implements `contracts.request_module.Workers`.  Safe from any thread.

    A silent worker is dropped when its time is over.  One that touches slots itself may be frozen in the middle of a copy:
    its holds stay in quarantine until its connection is closed, it unregisters, or it commits after all.

    A worker that registers again while its connection is closed may be another process with its id, or the same one, which
    has lost a connection and still copies: what it held stays in quarantine until the worker has been heard steadily for
    `STEADY_REAPS` reap times."""

    def __init__(
        self,
        references: WorkerReferences,
        is_connected: Callable[[bytes], bool],
        reap_seconds: float,
        grace_seconds: float,
        clock: Clock,
        events: Publisher,
        learn_layout: Callable[[ChunkLayout], None] = lambda layout: None,
    ) -> None:
        """`is_connected` is asked on any thread; False means that the client has closed this connection, or is dead.
        `learn_layout` is called with the layout of each object group that a worker registers, before anything can be stored
        with it."""
        self._references = references
        self.is_connected = is_connected
        self._reap = reap_seconds
        self._grace = grace_seconds
        self._clock = clock
        self._events = events
        self._learn_layout = learn_layout
        self._lock = threading.Lock()
        self._by_id: dict[int, _Registration] = {}
        self._notified: OrderedDict[int, None] = OrderedDict()
        self._leave: list[Callable[[Worker], None]] = []
        self._quarantined: list[Worker] = []
        """Dropped or replaced, and perhaps still touching their slots."""
        self._reaped_at = clock.monotonic()
        self.revision = 0
        """Raised under the lock after each change of what `groups` returns."""

    def find(self, instance_id: int) -> Worker | None:
        registration = self._by_id.get(instance_id)
        return registration.worker if registration else None

    def register(self, worker: Worker) -> Worker:
        for group in worker.groups:
            self._learn_layout(group.layout)
        now = self._clock.monotonic()
        with self._lock:
            known = self._by_id.get(worker.instance_id)
            closed = known.worker if known is not None and self._is_closed(known.worker, worker) else None
            if closed is not None:
                known = None
                self._quarantined.append(closed)
            elif known is None and len(self._by_id) >= WORKERS_MAX:
                raise ProtocolError(f"{WORKERS_MAX} workers are registered already, as many as one server takes")
            if known is None:
                keeps_fence = worker.fence_seconds > 0  # and so it pings
                self._by_id[worker.instance_id] = _Registration(worker, now, now, now, keeps_fence)
                self._notified.pop(worker.instance_id, None)
                self.revision += 1
            else:
                self._hear(known, now)
        if closed is not None:
            self._events.publish(WorkerLeft(closed.instance_id, closed.model_name, "closed"))
            if not self._touches(closed) or not self._references.quarantine_worker(closed.token, ends_reads=False):
                self._end_quarantined(lambda each: each is closed)
        if known is None:
            about = worker.instance_id, worker.model_name, worker.world_size, layout_of(worker)
            self._events.publish(WorkerRegistered(*about, shared_memory=not worker.inline))
            return worker
        there = known.worker
        if (there.model_name, there.world_size, there.groups) != (worker.model_name, worker.world_size, worker.groups):
            raise ProtocolError(
                f"instance {worker.instance_id} is registered for {there.model_name} with {layout_of(there)}, and cannot "
                f"be registered again for {worker.model_name} with {layout_of(worker)}; it must unregister first"
            )
        with self._lock:
            self._speaks(there, worker.connection)
        return there

    def _is_closed(self, known: Worker, again: Worker) -> bool:
        """Did the known one speak on another connection, which is closed?"""
        return known.connection not in (b"", again.connection) and not self.is_connected(known.connection)

    def unregister(self, instance_id: int, reason: str) -> None:
        with self._lock:
            registration = self._by_id.pop(instance_id, None)
            self.revision += 1
        if registration is not None:
            self._events.publish(WorkerLeft(instance_id, registration.worker.model_name, reason))
            self._end(registration.worker)
        self._end_quarantined(lambda worker: worker.instance_id == instance_id)

    def touch(self, worker: Worker) -> bool:
        with self._lock:
            registration = self._by_id.get(worker.instance_id)
            if registration is None or registration.worker is not worker:
                return False
            self._hear(registration, self._clock.monotonic())
            return True

    def seen(self, instance_id: int, pinged: bool, connection: bytes = b"") -> bool:
        with self._lock:
            registration = self._by_id.get(instance_id)
            if registration is not None:
                self._hear(registration, self._clock.monotonic())
                registration.pinged = registration.pinged or pinged
                if connection and registration.worker.connection:
                    self._speaks(registration.worker, connection)
                return True
            # One notification makes it register again; no more follow (docs/internals/engine-protocol.md, "Restart").
            if instance_id in self._notified:
                return True
            self._notified[instance_id] = None
            if len(self._notified) > UNKNOWN_IDS_MAX:
                self._notified.popitem(last=False)
            return False

    def learn_shard(self, worker: Worker, shard: int) -> None:
        with self._lock:
            if worker.shard is None:
                worker.shard = shard
                self.revision += 1

    def on_leave(self, function: Callable[[Worker], None]) -> None:
        self._leave.append(function)

    def groups(self, model_name: str, world_size: int, shard: int) -> tuple[tuple[tuple[ObjectGroup, ...], ...], bool]:
        names = (model_name, registered_name(model_name))
        group = [each for each in self.registered() if each.model_name in names and each.world_size == world_size]
        known = dict.fromkeys(worker.groups for worker in group if worker.shard == shard)
        if known:
            return tuple(known), True
        return tuple(dict.fromkeys(worker.groups for worker in group)), False

    def model_names(self, served: str, world_size: int) -> tuple[str, ...]:
        found = {worker.model_name for worker in self.registered() if worker.world_size == world_size}
        return tuple(sorted(name for name in found if parse_model_name(name).served == served))

    def reap(self) -> None:
        """Drop workers that have been silent for the reap time, or for the grace time if they never pinged.  To be called
        every `ROUND_SECONDS`: the time by which a round is late is not counted as silence."""
        now = self._clock.monotonic()
        passed, self._reaped_at = now - self._reaped_at, now
        dead: list[_Registration] = []
        with self._lock:
            if passed > STANDSTILL_ROUNDS * ROUND_SECONDS:
                for registration in self._by_id.values():
                    registration.seen = min(now, registration.seen + passed - ROUND_SECONDS)
                    registration.since += passed - ROUND_SECONDS
                    registration.steady_since = now  # workers may have stood still, too
            # Found and dropped under one lock: a worker that speaks in between is not dead.
            for instance_id, registration in list(self._by_id.items()):
                limit = self._reap if registration.pinged else self._grace
                if limit and now - registration.seen > limit:
                    dead.append(self._by_id.pop(instance_id))
                    self.revision += 1
        for registration in dead:
            worker = registration.worker
            about = worker.instance_id, worker.model_name, now - registration.seen
            logger.warning("worker is dead instance=%d model=%s silent_seconds=%.0f", *about)
            self._events.publish(WorkerLeft(worker.instance_id, worker.model_name, "silent"))
            self._drop_silent(worker)
        self._end_quarantined(self._is_gone)

    def settled(self) -> int:
        """Workers that spoke `SETTLED_SECONDS` after they registered: those that map L1 have mapped it."""
        return sum(each.seen - each.since > SETTLED_SECONDS for each in list(self._by_id.values()))

    def registered(self) -> list[Worker]:
        return [registration.worker for registration in list(self._by_id.values())]

    def status(self) -> list[dict[str, object]]:
        now = self._clock.monotonic()
        return [
            {
                "instance_id": instance_id,
                "model_name": parse_model_name(registration.worker.model_name).served,
                "identity": parse_model_name(registration.worker.model_name).identity,
                "world_size": registration.worker.world_size,
                "shard": registration.worker.shard,
                "layout": layout_of(registration.worker),
                "transport": "inline" if registration.worker.inline else "shared_memory",
                "silent_seconds": round(now - registration.seen, 1),
            }
            for instance_id, registration in list(self._by_id.items())
        ]

    def _hear(self, registration: _Registration, now: float) -> None:
        """It has given a sign of life.  Under the lock."""
        if now - registration.seen > self._reap / 2:
            registration.steady_since = now
        registration.seen = now

    @staticmethod
    def _touches(worker: Worker) -> bool:
        """Does it read and write slots itself?"""
        return bool(worker.connection) and not worker.inline

    def _drop_silent(self, worker: Worker) -> None:
        with self._lock:
            for each in self._quarantined:
                if each.instance_id == worker.instance_id and not self.is_connected(each.connection):
                    each.connection = worker.connection  # its process may be that of this one
        keeps_fence = 0 < worker.fence_seconds <= self._reap / 2
        if self._touches(worker) and self._references.quarantine_worker(worker.token, ends_reads=keeps_fence):
            with self._lock:
                self._quarantined.append(worker)
        else:
            self._end(worker)

    def _speaks(self, worker: Worker, connection: bytes) -> None:
        """Perhaps another process with its id.  Under the lock."""
        if connection != worker.connection:
            others = {*filter(self.is_connected, worker.others), worker.connection}
            worker.connection, worker.others = connection, frozenset(others - {connection})

    def _is_gone(self, worker: Worker) -> bool:
        """Does it touch nothing any more?  Under the lock."""
        again = self._by_id.get(worker.instance_id)
        others = worker.others - {again.worker.connection} if again else worker.others
        if any(map(self.is_connected, (worker.connection, *others))):
            return False
        return again is None or 0 < STEADY_REAPS * self._reap < again.seen - again.steady_since

    def _end_quarantined(self, is_gone: Callable[[Worker], bool]) -> None:
        with self._lock:
            gone = [worker for worker in self._quarantined if is_gone(worker)]
            self._quarantined = [worker for worker in self._quarantined if worker not in gone]
        for worker in gone:
            self._end(worker)

    def _end(self, worker: Worker) -> None:
        """It touches nothing any more."""
        self._references.end_worker(worker.token)
        for function in self._leave:
            function(worker)


def layout_of(worker: Worker) -> str:
    """The shapes of its objects, one for each object group."""
    return ", ".join(str(group.layout) for group in worker.groups)


REASON_MAX: Final = 300
REASONS_MAX: Final = 100
"""Characters of a reason, and number of reasons, that status keeps."""
L1_CHUNKS_MIN: Final = 8
"""Chunks of a worker that must fit into L1."""


def check_groups(
    context: ModuleContext, model_name: str, world_size: int, shard: int, groups: Sequence[ObjectGroup]
) -> None:
    """Raises ProtocolError, now and not at the first store, if a worker's keys or objects cannot be kept."""
    check_model_name(model_name)
    for number, group in enumerate(groups):
        context.space(SpaceFields(model_name, ""), pack_kv_rank(world_size, shard), group.layout, number)
    chunk_bytes = sum(group.layout.payload_bytes for group in groups)
    if chunk_bytes > context.l1_bytes // L1_CHUNKS_MIN:
        raise ProtocolError(
            f"a chunk of {chunk_bytes / 2**20:.1f} MiB is too large for an L1 of "
            f"{context.l1_bytes / 2**30:.2f} GiB; raise l1_size_gb or lower chunk_size"
        )


class Refusals:
    """Why engines got nothing, for operators.  Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reasons: dict[str, int] = {}

    def note(self, context: ModuleContext, instance_id: int, reason: object) -> None:
        """Log and count a registration.  The worker has its answer, so that no ping need repeat it."""
        logger.error("registration refused, the engine runs uncached instance=%d reason=%s", instance_id, reason)
        self.count(reason)
        context.workers.seen(instance_id, pinged=False)

    def count(self, reason: object) -> None:
        text = str(reason)[:REASON_MAX]
        with self._lock:
            if text in self._reasons or len(self._reasons) < REASONS_MAX:
                self._reasons[text] = self._reasons.get(text, 0) + 1

    def status(self) -> dict[str, int]:
        """How often, by reason."""
        with self._lock:
            return dict(self._reasons)


def registered_shards(context: ModuleContext, fields: SpaceFields, world_size: int) -> tuple[Shard, ...]:
    """By what workers have registered (docs/internals/object-format.md, "Object key"); nothing when no worker could read one of
    them."""
    shards: list[Shard] = []
    for worker_id in range(world_size):
        registered, every = context.workers.groups(fields.model_name, world_size, worker_id)
        if not registered:
            return ()
        rank = pack_kv_rank(world_size, worker_id)
        if every:
            for groups in registered:
                shards += [
                    Shard((context.space(fields, rank, group.layout, number),), group.window_chunks)
                    for number, group in enumerate(groups)
                ]
        else:
            shards += _any_of(context, fields, rank, registered)
    return tuple(dict.fromkeys(shards))


def _any_of(
    context: ModuleContext, fields: SpaceFields, rank: int, registered: Sequence[tuple[ObjectGroup, ...]]
) -> list[Shard]:
    """It is not known yet which of these registrations the shard is: for each object group, a chunk in any of their layouts
    counts.  Only registrations with the most groups do, because a worker needs all of its own."""
    count = max(map(len, registered))
    alike = [groups for groups in registered if len(groups) == count]
    shards = []
    for number, row in enumerate(zip(*alike, strict=True)):
        spaces = tuple(dict.fromkeys(context.space(fields, rank, group.layout, number) for group in row))
        windows = [group.window_chunks for group in row]
        shards.append(Shard(spaces, None if None in windows else max(window or 1 for window in windows)))
    return shards
