"""Which engine workers are registered, what shape their chunks have, and whether they are alive."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.events import Publisher, WorkerLeft, WorkerRegistered
from lmcache_core.contracts.request_module import ObjectGroup, Worker
from lmcache_core.model.errors import ProtocolError
from lmcache_core.model.layout import ChunkLayout
from lmcache_core.model.model_name import parse_model_name

logger = logging.getLogger(__name__)

WORKERS_MAX = 4096
STRANGERS_MAX = 4096
"""Unknown instance ids that are remembered as having been told so."""


@dataclass(slots=True, eq=False)
class _Registration:
    worker: Worker
    seen: float
    pinged: bool = False


class Registrations:
    """Implements `contracts.request_module.Workers`.  Safe from any thread."""

    def __init__(
        self,
        end_holds: Callable[[int], None],
        reap_seconds: float,
        grace_seconds: float,
        clock: Clock,
        events: Publisher,
        learn_layout: Callable[[ChunkLayout], None] = lambda layout: None,
    ) -> None:
        """`learn_layout` is told the layout of each object group that a worker registers, before anything can be stored with
        it."""
        self._end_holds = end_holds
        self._reap = reap_seconds
        self._grace = grace_seconds
        self._clock = clock
        self._events = events
        self._learn_layout = learn_layout
        self._lock = threading.Lock()
        self._by_id: dict[int, _Registration] = {}
        self._told: OrderedDict[int, None] = OrderedDict()
        self._leave: list[Callable[[Worker], None]] = []

    def __len__(self) -> int:
        return len(self._by_id)

    def find(self, instance_id: int) -> Worker | None:
        registration = self._by_id.get(instance_id)
        return registration.worker if registration else None

    def register(self, worker: Worker) -> Worker:
        for group in worker.groups:
            self._learn_layout(group.layout)
        with self._lock:
            known = self._by_id.get(worker.instance_id)
            if known is None and len(self._by_id) >= WORKERS_MAX:
                raise ProtocolError(f"{WORKERS_MAX} workers are registered already, as many as one server takes")
            if known is None:
                self._by_id[worker.instance_id] = _Registration(worker, self._clock.monotonic())
                self._told.pop(worker.instance_id, None)
            else:
                known.seen = self._clock.monotonic()
        if known is None:
            layout = layout_of(worker)
            self._events.publish(
                WorkerRegistered(
                    worker.instance_id, worker.model_name, worker.world_size, layout, shared_memory=not worker.inline
                )
            )
            return worker
        there = known.worker
        if (there.model_name, there.world_size, there.groups) != (worker.model_name, worker.world_size, worker.groups):
            raise ProtocolError(
                f"instance {worker.instance_id} is registered for {there.model_name} with {layout_of(there)}, and cannot "
                f"be registered again for {worker.model_name} with {layout_of(worker)}; it must unregister first"
            )
        return there

    def unregister(self, instance_id: int, reason: str) -> None:
        with self._lock:
            registration = self._by_id.pop(instance_id, None)
        if registration is not None:
            self._left(registration.worker, reason)

    def touch(self, worker: Worker) -> bool:
        with self._lock:
            registration = self._by_id.get(worker.instance_id)
            if registration is None or registration.worker is not worker:
                return False
            registration.seen = self._clock.monotonic()
            return True

    def seen(self, instance_id: int, pinged: bool) -> bool:
        with self._lock:
            registration = self._by_id.get(instance_id)
            if registration is not None:
                registration.seen = self._clock.monotonic()
                registration.pinged = registration.pinged or pinged
                return True
            # It is told once, so that it registers again, and then left in peace (docs/engine-protocol.md, "Restart").
            if instance_id in self._told:
                return True
            self._told[instance_id] = None
            if len(self._told) > STRANGERS_MAX:
                self._told.popitem(last=False)
            return False

    def on_leave(self, function: Callable[[Worker], None]) -> None:
        self._leave.append(function)

    def groups(self, model_name: str, world_size: int, shard: int) -> tuple[tuple[tuple[ObjectGroup, ...], ...], bool]:
        names = (model_name, parse_model_name(model_name).registered)
        with self._lock:
            group = [
                registration.worker
                for registration in self._by_id.values()
                if registration.worker.model_name in names and registration.worker.world_size == world_size
            ]
        known = dict.fromkeys(worker.groups for worker in group if worker.shard == shard)
        if known:
            return tuple(known), True
        return tuple(dict.fromkeys(worker.groups for worker in group)), False

    def model_names(self, served: str, world_size: int) -> tuple[str, ...]:
        found = {worker.model_name for worker in self.everybody() if worker.world_size == world_size}
        return tuple(sorted(name for name in found if parse_model_name(name).served == served))

    def reap(self) -> None:
        """Drop workers that are known dead: silent for the reap time, or for the grace time if they never pinged."""
        now = self._clock.monotonic()
        dead: list[_Registration] = []
        with self._lock:
            # Found and dropped under one lock: a worker that speaks in between is not dead.
            for instance_id, registration in list(self._by_id.items()):
                limit = self._reap if registration.pinged else self._grace
                if limit and now - registration.seen > limit:
                    dead.append(self._by_id.pop(instance_id))
        for registration in dead:
            logger.warning(
                "worker is dead instance=%d model=%s silent_seconds=%.0f",
                registration.worker.instance_id,
                registration.worker.model_name,
                now - registration.seen,
            )
            self._left(registration.worker, "silent")

    def everybody(self) -> list[Worker]:
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

    def _left(self, worker: Worker, reason: str) -> None:
        self._end_holds(worker.token)
        for function in self._leave:
            function(worker)
        self._events.publish(WorkerLeft(worker.instance_id, worker.model_name, reason))


def layout_of(worker: Worker) -> str:
    """The shapes of its objects, one for each object group."""
    return ", ".join(str(group.layout) for group in worker.groups)
