"""Sends what workers store on to L2, at L2's pace.

Every object that is to go to L2 is held by a lease of this controller from the moment it becomes visible, so that it
cannot be evicted before it is stored.  What waits is bounded for each adapter by itself, in bytes and in the time that
the adapter would take for it; what exceeds that stays in L1 only, and is counted.  An object that is on its way to an
adapter goes there once, however often it is stored meanwhile.

Nothing is stored again here after a failure: an adapter knows which of its backend's errors pass, and retries those
within its budget (`jobs/retry.py`), so its FAILED is final.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.events import Publisher, StoreCompleted, StoresDropped, StoreSubmitted
from lmcache_core.contracts.l2_adapter import StoreItem
from lmcache_core.contracts.policies import StorePolicy
from lmcache_core.controllers.adapter_port import AdapterPort, Answer, JobAnswer, JobReleased
from lmcache_core.controllers.message_loop import MessageLoop
from lmcache_core.controllers.store_plan import plan_stores
from lmcache_core.controllers.store_queue import DropReason, StoreJob, StoreLimits, StoreQueue
from lmcache_core.controllers.store_unit import StoreUnit
from lmcache_core.l1.cache import L1Cache
from lmcache_core.l1.leases import Lease, Owner, OwnerKind
from lmcache_core.model.object_header import seal
from lmcache_core.model.results import Outcome


@dataclass(frozen=True, slots=True)
class Batch:
    """Slots that became visible together, in prompt order, held by `lease`."""

    lease: Lease
    slots: tuple[int, ...]
    size_bytes: int
    hit: bool = False
    """True: they have been there, and were hit."""
    first_chunk: int = 0
    """Position of the first one in its prompt."""


class StoreController(MessageLoop[Batch | Answer]):
    """`admit` to `status` are for any thread; everything else happens on the controller's own, whose body is `run`."""

    def __init__(
        self,
        cache: L1Cache,
        ports: Sequence[AdapterPort],
        policy: StorePolicy,
        limits: StoreLimits,
        clock: Clock,
        events: Publisher,
    ) -> None:
        super().__init__()
        self._cache = cache
        self._policy = policy
        self._queues = [StoreQueue(port, limits) for port in ports]
        self._backlog_max = limits.backlog_bytes
        self._clock = clock
        self._events = events
        self._lock = threading.Lock()  # guards the three below
        self._backlog = 0
        self._intake = 0
        self._refused = 0
        self._jobs = 0
        self._batches = 0
        self._busy: Counter[int] = Counter()
        """Units that are not finished, by slot: adapters read it."""
        self._sealed: set[int] = set()
        """Busy slots whose header page is written, and must stay as it is."""
        self._trimmed: Batch | None = None
        """What is left of the batch that is being enqueued."""
        self._enqueuing: list[StoreUnit] = []
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
        """Take `count` objects in: an empty lease to publish them with.  None where the controller is so far behind that
        what it has not looked at exceeds what may wait for one adapter; they are counted as refused then, unless they
        were there before and only `hit`.  An admitted batch must be followed by `offer` or `withdraw`."""
        size = count * object_bytes
        with self._lock:
            full = self._intake + size > self._backlog_max and (hit or self._intake > 0)
            if not full:
                self._intake += size
                self._backlog += size
                self._idle.clear()
            elif not hit:
                self._refused += count
        if full:
            if not hit:
                self._events.publish(StoresDropped("", count, size, DropReason.CONTROLLER_BEHIND))
            return None
        return self._cache.open(Owner(OwnerKind.CONTROLLER, "store"), None)

    def withdraw(self, lease: Lease, count: int, object_bytes: int) -> None:
        """The admitted batch was not published."""
        self._cache.end(lease)
        self.forgo(count, object_bytes)

    def forgo(self, count: int, object_bytes: int) -> None:
        """So many objects of an admitted batch are gone."""
        self._taken_in(count * object_bytes)
        self._shrink(count * object_bytes)

    def offer(self, batch: Batch) -> None:
        """Take over an admitted batch."""
        self._inbox.post(batch)

    def drain(self, seconds: float) -> bool:
        """Wait until nothing is on its way.  False when something still is."""
        return self._idle.wait(seconds)

    def status(self) -> dict[str, object]:
        """`backlog_bytes` is what L1 holds for L2; objects that go to several adapters count once in it."""
        now = self._clock.monotonic()
        return {
            "backlog_bytes": self._backlog,
            "backlog_max_bytes": self._backlog_max,
            "refused": self._refused,
            "adapters": {queue.port.name: queue.status(now) for queue in self._queues},
        }

    # --- on the controller's thread

    def _handle(self, message: Batch | Answer) -> None:
        match message:
            case Batch():
                self._enqueue(message)
                self._taken_in(message.size_bytes)
            case JobAnswer(StoreJob() as job, outcomes, released):
                self._answered(job, outcomes, released)
            case JobReleased(StoreJob() as job):
                self._release(job)

    def _go_on(self) -> None:
        for queue in self._queues:
            self._pump(queue)

    def _give_up(self, message: Batch | Answer) -> None:
        match message:
            case Batch(lease):
                for queue in self._queues:
                    self._publish_drop(queue, queue.withdraw(lease), DropReason.CONTROLLER_FAILED)
                size = 0 if self._enqueuing else (self._trimmed or message).size_bytes
                for unit in self._enqueuing:
                    if unit.remaining > 0:
                        unit.remaining = 0
                        self._let_go(unit.slot)
                        size += unit.size_bytes
                self._trimmed, self._enqueuing = None, []
                self._cache.end(lease)
                self._taken_in(message.size_bytes)
                self._shrink(size)
            case JobAnswer(StoreJob() as job, _, released):
                job.queue.settle(job, (), self._clock.monotonic())
                self._release(job) if released else self._quarantine(job)
            case JobReleased(StoreJob() as job):
                self._release(job)

    def _enqueue(self, batch: Batch) -> None:
        self._trimmed = batch = self._without_busy(batch) if batch.hit else batch
        items = [StoreItem(self._cache.key_of(slot), self._cache.buffer(slot)) for slot in batch.slots]
        plan = plan_stores(self._policy, items, batch.hit, [queue.port.facts for queue in self._queues])
        self._batches += 1
        units = [
            StoreUnit(slot, batch.lease, item, self._batches, batch.first_chunk + place, plan.drop_from_l1)
            for place, (slot, item) in enumerate(zip(batch.slots, items, strict=True))
        ]
        self._busy.update(batch.slots)
        self._enqueuing = units
        for index, queue in enumerate(self._queues):
            chosen = [unit for unit, queues in zip(units, plan.targets, strict=True) if index in queues]
            if batch.hit:  # it displaces nothing: it can be hit again
                sizes = accumulate(unit.size_bytes for unit in chosen)
                chosen = [unit for unit, size in zip(chosen, sizes, strict=True) if size <= queue.room_bytes]
            queue.add(chosen)
        self._finish(units)
        self._trimmed, self._enqueuing = None, []

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

    def _pump(self, queue: StoreQueue) -> None:
        if not queue.port.healthy:
            self._drop(queue, queue.drop_all(DropReason.ADAPTER_DOWN), DropReason.ADAPTER_DOWN)
            return
        now = self._clock.monotonic()
        while job := queue.next_job(self._jobs + 1, now):
            self._jobs += 1
            try:
                self._submit(job)
            except BaseException:
                queue.settle(job, (), now)
                self._release(job)
                raise
        self._drop(queue, *queue.drop_excess(now))

    def _submit(self, job: StoreJob) -> None:
        port = job.queue.port
        self._seal(job.units)
        self._events.publish(StoreSubmitted(port.name, job.number, len(job.units), job.size_bytes))
        port.submit_store([unit.item for unit in job.units], self._inbox, job)

    def _seal(self, units: Sequence[StoreUnit]) -> None:
        """Write the header pages: the digest is computed here, once, and on nobody's request."""
        for unit in units:
            if unit.slot not in self._sealed:
                seal(unit.item.buffer.view, unit.item.key, self._clock.wall_ns())
                self._sealed.add(unit.slot)

    def _answered(self, job: StoreJob, outcomes: Sequence[Outcome], released: bool) -> None:
        now = self._clock.monotonic()
        stored = sum(outcome is Outcome.DONE for outcome in outcomes)
        failed = len(outcomes) - stored
        if job.queue.settle(job, outcomes, now):
            self._events.publish(StoreCompleted(job.queue.port.name, job.number, stored, failed, now - job.begun))
        self._release(job) if released else self._quarantine(job)

    def _release(self, job: StoreJob) -> None:
        """The adapter is done with the job's buffers.  Once: what another adapter still reads must not be let go twice."""
        units, job.units = job.units, ()
        self._finish(units)

    def _quarantine(self, job: StoreJob) -> None:
        for unit in job.units:
            self._cache.quarantine(unit.lease)

    def _drop(self, queue: StoreQueue, units: Sequence[StoreUnit], reason: DropReason) -> None:
        self._publish_drop(queue, units, reason)
        self._finish(units)

    def _publish_drop(self, queue: StoreQueue, units: Sequence[StoreUnit], reason: DropReason) -> None:
        if units:
            size = sum(unit.size_bytes for unit in units)
            self._events.publish(StoresDropped(queue.port.name, len(units), size, reason))

    def _finish(self, units: Sequence[StoreUnit]) -> None:
        """One adapter is done with these; the last one ends their holds."""
        done: dict[Lease, list[int]] = {}
        size = 0
        leaving = []
        for unit in units:
            if unit.remaining <= 0:
                continue  # given up before
            unit.remaining -= 1
            if unit.remaining == 0:
                done.setdefault(unit.lease, []).append(unit.slot)
                self._let_go(unit.slot)
                size += unit.size_bytes
                if unit.leave_l1:
                    leaving.append(unit.slot)
        if leaving:
            self._cache.drop_when_released(leaving)
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

    def _taken_in(self, size: int) -> None:
        with self._lock:
            self._intake -= size

    def _shrink(self, size: int) -> None:
        with self._lock:
            self._backlog -= size
            if self._backlog == 0:
                self._idle.set()
