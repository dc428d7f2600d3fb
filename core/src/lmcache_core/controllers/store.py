"""Sends what workers store on to L2, at L2's pace.

Every object that is to go to L2 is held by a lease of this controller from the moment it becomes visible, so that it
cannot be evicted before it is stored.  The backlog is bounded in bytes; what does not fit stays in L1 only, and is
counted.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.events import Publisher, StoreCompleted, StoresDropped, StoreSubmitted
from lmcache_core.contracts.l2_adapter import StoreItem
from lmcache_core.contracts.policies import StoredObject, StorePolicy
from lmcache_core.controllers.adapter_port import AdapterPort, Answer, JobAnswer, JobReleased
from lmcache_core.controllers.message_loop import MessageLoop
from lmcache_core.l1.cache import L1Cache
from lmcache_core.l1.leases import Lease, Owner, OwnerKind
from lmcache_core.model.object_header import seal
from lmcache_core.model.results import Outcome

logger = logging.getLogger(__name__)

JOB_OBJECTS = 32
JOB_BYTES = 64 << 20
"""A job is at most this large, so that completions come steadily; one object may be larger."""
IN_FLIGHT_BYTES = 256 << 20
"""Handed to one adapter at once; the rest waits here, where it can still be dropped."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Slots that became visible together, held by `lease`."""

    lease: Lease
    slots: tuple[int, ...]
    size_bytes: int
    hit: bool = False
    """True: they have been there, and were hit."""


@dataclass(slots=True, eq=False)
class _Unit:
    """One object on its way to one or more adapters."""

    slot: int
    lease: Lease
    item: StoreItem
    remaining: int
    leave_l1: bool


@dataclass(slots=True, eq=False)
class _Job:
    number: int
    queue: _Queue
    units: list[_Unit]
    size_bytes: int
    begun: float


@dataclass(slots=True, eq=False)
class _Queue:
    port: AdapterPort
    waiting: deque[_Unit] = field(default_factory=deque)
    jobs: set[_Job] = field(default_factory=set)
    """Submitted and not answered."""
    stored: int = 0
    failed: int = 0
    dropped: int = 0

    @property
    def in_flight_bytes(self) -> int:
        return sum(job.size_bytes for job in self.jobs)


class StoreController(MessageLoop[Batch | Answer]):
    """`offer` and `drain` are for any thread; everything else happens on the controller's own, whose body is `run`."""

    def __init__(
        self,
        cache: L1Cache,
        ports: Sequence[AdapterPort],
        policy: StorePolicy,
        backlog_bytes: int,
        clock: Clock,
        events: Publisher,
    ) -> None:
        super().__init__()
        self._cache = cache
        self._policy = policy
        self._queues = [_Queue(port) for port in ports]
        self._backlog_max = backlog_bytes
        self._backlog = 0
        self._clock = clock
        self._events = events
        self._lock = threading.Lock()
        self._jobs = 0
        self._busy: Counter[int] = Counter()
        """Units that are not finished, by slot: adapters read it."""
        self._sealed: set[int] = set()
        """Busy slots whose header page is written, and must stay as it is."""
        self._trimmed: Batch | None = None
        """What is left of the batch that is being enqueued."""
        self._idle = threading.Event()
        self._idle.set()

    @property
    def active(self) -> bool:
        """Is there anything to store to?"""
        return bool(self._queues)

    @property
    def plans_hits(self) -> bool:
        """Does the policy want to hear of hits?"""
        return self.active and self._policy.plans_hits

    def admit(self, count: int, object_bytes: int, *, hit: bool = False) -> Lease | None:
        """Room in the backlog for `count` objects: an empty lease to publish them with, or None, and they are counted
        as dropped, unless they were there before and only `hit`.  An admitted batch must be followed by `offer` or
        `withdraw`."""
        size = count * object_bytes
        with self._lock:
            full = self._backlog + size > self._backlog_max
            if not full:
                self._backlog += size
                self._idle.clear()
        if full and hit:
            return None
        if full:
            for queue in self._queues:
                queue.dropped += count
                self._events.publish(StoresDropped(queue.port.name, count, size, "backlog is full"))
            return None
        return self._cache.open(Owner(OwnerKind.CONTROLLER, "store"), None)

    def withdraw(self, lease: Lease, count: int, object_bytes: int) -> None:
        """The admitted batch was not published."""
        self._cache.end(lease)
        self._shrink(count * object_bytes)

    def forgo(self, count: int, object_bytes: int) -> None:
        """So many objects of an admitted batch are gone."""
        self._shrink(count * object_bytes)

    def offer(self, batch: Batch) -> None:
        """Take over an admitted batch."""
        self._inbox.post(batch)

    def drain(self, seconds: float) -> bool:
        """Wait until nothing is on its way.  False when something still is."""
        return self._idle.wait(seconds)

    def status(self) -> dict[str, object]:
        return {
            "backlog_bytes": self._backlog,
            "backlog_max_bytes": self._backlog_max,
            "adapters": {
                queue.port.name: {"stored": queue.stored, "failed": queue.failed, "dropped": queue.dropped}
                for queue in self._queues
            },
        }

    # --- on the controller's thread

    def _handle(self, message: Batch | Answer) -> None:
        match message:
            case Batch():
                self._enqueue(message)
            case JobAnswer(_Job() as job, outcomes, released):
                self._answered(job, outcomes, released)
            case JobReleased(_Job() as job):
                self._finish(job.units)

    def _go_on(self) -> None:
        for queue in self._queues:
            self._pump(queue)

    def _give_up(self, message: Batch | Answer) -> None:
        match message:
            case Batch(lease):
                waiting = {id(unit): unit for queue in self._queues for unit in queue.waiting if unit.lease is lease}
                for queue in self._queues:
                    queue.waiting = deque(unit for unit in queue.waiting if unit.lease is not lease)
                for unit in waiting.values():
                    self._let_go(unit.slot)
                self._cache.end(lease)
                self._shrink((self._trimmed or message).size_bytes)
                self._trimmed = None
            case JobAnswer(_Job() as job, _, released):
                job.queue.jobs.discard(job)
                if released:
                    self._finish(job.units)
                else:
                    self._quarantine(job)

    def _enqueue(self, batch: Batch) -> None:
        self._trimmed = batch = self._without_busy(batch) if batch.hit else batch
        items = [StoreItem(self._cache.key_of(slot), self._cache.buffer(slot)) for slot in batch.slots]
        targets, leave_l1 = self._plan(items, batch.hit) if items else ((), False)
        units = [
            _Unit(slot, batch.lease, item, max(1, len(queues)), leave_l1)
            for slot, item, queues in zip(batch.slots, items, targets, strict=True)
        ]
        self._busy.update(batch.slots)
        for unit, queues in zip(units, targets, strict=True):
            for index in queues:
                self._queues[index].waiting.append(unit)
        self._trimmed = None
        self._finish([unit for unit, queues in zip(units, targets, strict=True) if not queues])

    def _plan(self, items: Sequence[StoreItem], hit: bool) -> tuple[Sequence[tuple[int, ...]], bool]:
        """The adapters that each object goes to, and whether it leaves L1 then."""
        objects = [StoredObject(item.key.space, item.key.chunk_hash, item.buffer.length, hit) for item in items]
        known = range(len(self._queues))
        try:
            plan = self._policy.plan(objects, [queue.port.facts for queue in self._queues])
            targets, leave_l1 = [tuple(chosen) for chosen in plan.targets], bool(plan.drop_from_l1)
            if len(targets) != len(items):
                raise ValueError(f"the store policy planned {len(targets)} of {len(items)} objects")
            if any(type(index) is not int or index not in known for chosen in targets for index in chosen):
                raise ValueError(f"the store policy named other adapters than 0 to {len(known) - 1}")
            if any(len(set(chosen)) != len(chosen) for chosen in targets):
                raise ValueError("the store policy named an adapter twice")
        except (Exception, SystemExit):  # a plugin boundary: without a plan the objects stay in L1 only
            logger.exception("store policy failed objects=%d", len(items))
            return [()] * len(items), False
        return targets, leave_l1

    def _without_busy(self, batch: Batch) -> Batch:
        """What was hit while it is on its way, or while its store is not here yet, is not planned again."""
        left = tuple(slot for slot in dict.fromkeys(batch.slots) if slot not in self._busy)
        if len(left) == len(batch.slots):
            return batch
        size = batch.size_bytes // len(batch.slots) * (len(batch.slots) - len(left))
        self._cache.release(batch.lease, [slot for slot in batch.slots if slot in self._busy])
        self._shrink(size)
        if not left:
            self._cache.end(batch.lease)
        return replace(batch, slots=left, size_bytes=batch.size_bytes - size)

    def _pump(self, queue: _Queue) -> None:
        while queue.waiting:
            if not queue.port.healthy:
                self._drop(queue)
                return
            if queue.in_flight_bytes >= IN_FLIGHT_BYTES:
                return
            self._submit(queue)

    def _submit(self, queue: _Queue) -> None:
        units: list[_Unit] = []
        size = 0
        while queue.waiting and len(units) < JOB_OBJECTS and (not units or size < JOB_BYTES):
            units.append(queue.waiting.popleft())
            size += units[-1].item.buffer.length
        self._jobs += 1
        job = _Job(self._jobs, queue, units, size, self._clock.monotonic())
        try:
            self._seal(units)
        except BaseException:
            self._finish(units)
            raise
        queue.jobs.add(job)
        self._events.publish(StoreSubmitted(queue.port.name, job.number, len(units), size))
        queue.port.submit_store([unit.item for unit in units], self._inbox, job)

    def _seal(self, units: Sequence[_Unit]) -> None:
        """Write the header pages: the digest is computed here, once, and on nobody's request."""
        for unit in units:
            if unit.slot not in self._sealed:
                seal(unit.item.buffer.view, unit.item.key, self._clock.wall_ns())
                self._sealed.add(unit.slot)

    def _answered(self, job: _Job, outcomes: Sequence[Outcome], released: bool) -> None:
        stored = sum(outcome is Outcome.DONE for outcome in outcomes)
        job.queue.stored += stored
        job.queue.failed += len(outcomes) - stored
        job.queue.jobs.discard(job)
        seconds = self._clock.monotonic() - job.begun
        self._events.publish(StoreCompleted(job.queue.port.name, job.number, stored, len(outcomes) - stored, seconds))
        if released:
            self._finish(job.units)
        else:
            self._quarantine(job)

    def _quarantine(self, job: _Job) -> None:
        for unit in job.units:
            self._cache.quarantine(unit.lease)

    def _drop(self, queue: _Queue) -> None:
        units = list(queue.waiting)
        queue.waiting.clear()
        queue.dropped += len(units)
        size = sum(unit.item.buffer.length for unit in units)
        self._events.publish(StoresDropped(queue.port.name, len(units), size, "the adapter does not answer"))
        self._finish(units)

    def _finish(self, units: Sequence[_Unit]) -> None:
        """One adapter is done with these; the last one ends their holds."""
        done: dict[Lease, list[int]] = {}
        size = 0
        for unit in units:
            if unit.remaining <= 0:
                continue  # given up before
            unit.remaining -= 1
            if unit.remaining == 0:
                done.setdefault(unit.lease, []).append(unit.slot)
                self._let_go(unit.slot)
                size += unit.item.buffer.length
                if unit.leave_l1:
                    self._cache.drop_when_released([unit.slot])
        for lease, slots in done.items():
            self._cache.release(lease, slots)
            if not lease.slots:
                self._cache.end(lease)
        self._shrink(size)

    def _let_go(self, slot: int) -> None:
        self._busy[slot] -= 1
        if not self._busy[slot]:
            del self._busy[slot]
            self._sealed.discard(slot)

    def _shrink(self, size: int) -> None:
        with self._lock:
            self._backlog -= size
            if self._backlog == 0:
                self._idle.set()
