"""Stores to L2 what workers publish in L1, at L2's pace.

Every object that is to go to L2 is held by a lease of this controller from the moment it becomes visible, so that it
cannot be evicted before it is stored.  What waits is bounded for each adapter by itself, in bytes and in the time that
the adapter would take for it; what exceeds that stays in L1 only, and is counted.  An object that is on its way to an
adapter goes there once, however often it is stored meanwhile.

Nothing is stored again here after a failure: an adapter knows which of its backend's errors pass, and retries those
within its budget (`RetryPolicy`), so its FAILED is final.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate

from msgspec import structs

from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.counts import StoreCounts, StoreView
from lmcache_core.contracts.events import Publisher, StoreCompleted, StoresDropped, StoreSubmitted
from lmcache_core.contracts.l2_adapter import StoreItem
from lmcache_core.contracts.policies import AdapterFacts, StoredObject, StorePlan, StorePolicy
from lmcache_core.controllers.adapter_client import AdapterClient
from lmcache_core.controllers.adapter_jobs import Answer, JobAnswer, JobReleased
from lmcache_core.controllers.policy_guard import GuardedPolicy
from lmcache_core.controllers.store_queue import DropReason, StoreJob, StoreLimits, StoreQueue
from lmcache_core.controllers.store_units import Batch, StoreBacklog, StoreReferences, StoreUnit
from lmcache_core.jobs.queues import MessageLoop, PendingCall
from lmcache_core.l1.cache import L1Cache
from lmcache_core.l1.leases import Lease, Owner, OwnerKind
from lmcache_core.l1.read_checks import ReadChecks
from lmcache_core.model.results import Outcome


def plan_stores(
    guarded: GuardedPolicy[StorePolicy], items: Sequence[StoreItem], batch: Batch, adapters: Sequence[AdapterFacts]
) -> StorePlan:
    """The adapters that each object of the batch goes to.  Where the policy raises, or names what is not there, none: the
    objects stay in L1 only.  Where that happens again and again, the built-in policy is asked instead, from these objects
    on."""
    if not items:
        return StorePlan(())
    if not adapters:
        return StorePlan(((),) * len(items))
    objects = [
        StoredObject(item.key.space, item.key.chunk_hash, item.buffer.length, batch.hit, chunk, batch.request)
        for item, chunk in zip(items, batch.chunks, strict=True)
    ]
    known = range(len(adapters))

    def plan(policy: StorePolicy) -> StorePlan:
        plan = policy.plan(objects, adapters)
        targets = tuple(tuple(chosen) for chosen in plan.targets)
        if len(targets) != len(items):
            raise ValueError(f"the store policy planned {len(targets)} of {len(items)} objects")
        for chosen in set(targets):
            if any(type(index) is not int or index not in known for index in chosen):
                raise ValueError(f"the store policy named other adapters than 0 to {len(known) - 1}")
            if len(set(chosen)) != len(chosen):
                raise ValueError("the store policy named an adapter twice")
        return StorePlan(targets, bool(plan.drop_from_l1))

    return guarded.call("plan", plan, StorePlan(((),) * len(items)))


class StoreController(MessageLoop[Batch | Answer]):
    """`admit` to `status` are for any thread; everything else happens on the controller's own, whose body is `run`."""

    def __init__(
        self,
        cache: L1Cache,
        clients: Sequence[AdapterClient],
        policy: StorePolicy,
        limits: StoreLimits,
        clock: Clock,
        events: Publisher,
        *,
        built_in: Callable[[], StorePolicy] | None = None,
    ) -> None:
        """`built_in` makes the policy that takes over where `policy` fails again and again."""
        super().__init__()
        self._cache = cache
        self.guarded = GuardedPolicy("store policy", policy, clock, built_in)
        """The policy and its failures."""
        self._limits = limits
        self._queues = tuple([StoreQueue(client, limits) for client in clients if not client.is_read_only])
        """In the order of the cascade, without what is read only.  Replaced as a whole, on this thread; others may look."""
        self.active = bool(self._queues)
        """True while there is an adapter to store to.  Written on this thread, read by any."""
        self._clock = clock
        self._events = events
        self.backlog = StoreBacklog()
        self.drain = self.backlog.wait
        self._references = StoreReferences(cache, self.backlog)
        self._jobs = 0
        self._batches = 0
        self._trimmed: Batch | None = None
        """The rest of the batch that is being enqueued."""
        self._enqueuing: list[StoreUnit] = []

    def admit(self, count: int, object_bytes: int, *, hit: bool = False) -> Lease | None:
        """Take `count` objects in: an empty lease to publish them with.  None where the controller is so far behind that
        what it has not looked at exceeds what may wait for one adapter; they are counted as refused then, unless they
        were there before and only `hit`.  An admitted batch must be followed by `offer` or `withdraw`."""
        size = count * object_bytes
        if not self.backlog.admit(count, size, self._limits.backlog_bytes, hit=hit):
            if not hit:
                self._events.publish(StoresDropped("", count, size, DropReason.CONTROLLER_BEHIND))
            return None
        return self._cache.leases.open(Owner(OwnerKind.CONTROLLER, "store"), None)

    def withdraw(self, lease: Lease, count: int, object_bytes: int) -> None:
        """The admitted batch was not published."""
        self._cache.leases.end(lease)
        self.forgo(count, object_bytes)

    def forgo(self, count: int, object_bytes: int) -> None:
        """`count` objects of an admitted batch are gone."""
        self.backlog.seen(count * object_bytes)
        self.backlog.shrink(count * object_bytes)

    def offer(self, batch: Batch) -> None:
        """Take over an admitted batch."""
        self._inbox.post(batch)

    # --- changes while the server runs: each is made on the controller's thread, soon

    def add_adapter(self, client: AdapterClient) -> PendingCall:
        """Objects that come from then on go to this adapter, too."""

        def apply() -> None:
            if not client.is_read_only:
                self._line_up((*self._queues, StoreQueue(client, self._limits)))

        return self.call_soon(apply)

    def drain_adapter(self, client: AdapterClient, *, again: bool = False) -> PendingCall:
        """Objects that come from then on do not go to it, or go there `again`; those that wait for it do."""

        def apply() -> None:
            for queue in self._queues:
                queue.open = again if queue.client is client else queue.open
            self._line_up(self._queues)

        return self.call_soon(apply)

    def remove_adapter(self, client: AdapterClient) -> PendingCall:
        """Drop the objects that wait for it.  Jobs under way go on, and their references are released one by one."""

        def apply() -> None:
            for queue in self._queues:
                if queue.client is client:
                    self._line_up(tuple([other for other in self._queues if other is not queue]))
                    self._drop(queue, queue.drop_all(DropReason.ADAPTER_REMOVED), DropReason.ADAPTER_REMOVED)

        return self.call_soon(apply)

    def pending_for(self, client: AdapterClient) -> tuple[int, int]:
        """Objects and bytes on their way to it, waiting or handed over.  Any thread."""
        counts = self._counts_of(client)
        return (counts.waiting + counts.in_flight, counts.backlog_bytes) if counts else (0, 0)

    def lost_objects(self, client: AdapterClient) -> int:
        """Objects that were to go there and did not get there, since it came.  Any thread."""
        counts = self._counts_of(client)
        return counts.failed + counts.dropped if counts else 0

    def limit(self, limits: StoreLimits) -> PendingCall:
        """Set the limits of each adapter's queue."""

        def apply() -> None:
            self._limits = limits
            for queue in self._queues:
                queue.limit(limits)

        return self.call_soon(apply)

    def plan_by(self, policy: StorePolicy) -> PendingCall:
        """Another policy says what goes where."""
        return self.call_soon(lambda: self.guarded.take(policy))

    def views(self) -> dict[str, StoreView]:
        """By adapter."""
        now = self._clock.monotonic()
        return {queue.client.name: queue.view(now) for queue in self._queues}

    def status(self) -> dict[str, object]:
        """`backlog_bytes` is what L1 holds for L2; objects that go to several adapters count once in it."""
        now = self._clock.monotonic()
        return {
            "backlog_bytes": self.backlog.size_bytes,
            "backlog_max_bytes": self._limits.backlog_bytes,
            "refused": self.backlog.refused,
            "adapters": {queue.client.name: queue.status(now) for queue in self._queues},
        }

    # --- on the controller's thread

    def _handle(self, message: Batch | Answer) -> None:
        match message:
            case Batch():
                self._enqueue(message)
                self.backlog.seen(message.size_bytes)
            case JobAnswer(StoreJob() as job, outcomes, released):
                self._answered(job, outcomes, released)
            case JobReleased(StoreJob() as job):
                self._release(job)

    def _go_on(self) -> None:
        for queue in self._queues:
            self._pump(queue)

    def _abort(self, message: Batch | Answer) -> None:
        match message:
            case Batch(lease):
                for queue in self._queues:
                    self._publish_drop(queue, queue.withdraw(lease), DropReason.CONTROLLER_FAILED)
                size = self._references.abort(self._enqueuing)
                size = size if self._enqueuing else (self._trimmed or message).size_bytes
                self._trimmed, self._enqueuing = None, []
                self._cache.leases.end(lease)
                self.backlog.seen(message.size_bytes)
                self.backlog.shrink(size)
            case JobAnswer(StoreJob() as job, _, released):
                job.queue.complete(job, (), self._clock.monotonic())
                self._release(job) if released else self._keep(job)
            case JobReleased(StoreJob() as job):
                self._release(job)

    def _enqueue(self, batch: Batch) -> None:
        self._trimmed = batch = self._without_busy(batch) if batch.hit else batch
        items = [StoreItem(self._cache.key_of(slot), self._cache.buffer(slot)) for slot in batch.slots]
        plan = plan_stores(self.guarded, items, batch, [queue.facts for queue in self._queues])
        self._batches += 1
        now = self._clock.monotonic()
        units = [
            StoreUnit(
                slot, batch.lease, item, self._batches, chunk, now, batch.request_id, plan.drop_from_l1 and self.active
            )
            for slot, item, chunk in zip(batch.slots, items, batch.chunks, strict=True)
        ]
        self._references.begin(batch.slots)
        self._enqueuing = units
        for index, queue in enumerate(self._queues):
            if not queue.open:
                continue
            chosen = [unit for unit, queues in zip(units, plan.targets, strict=True) if index in queues]
            if batch.hit:  # it displaces nothing: it can be hit again
                sizes = accumulate(unit.size_bytes for unit in chosen)
                chosen = [unit for unit, size in zip(chosen, sizes, strict=True) if size <= queue.free_bytes]
            queue.add(chosen)
        self._references.finish(units)
        self._trimmed, self._enqueuing = None, []

    def _line_up(self, queues: tuple[StoreQueue, ...]) -> None:
        self._queues = queues
        self.active = any(queue.open for queue in queues)

    def _without_busy(self, batch: Batch) -> Batch:
        """Objects that were hit while they are on their way are not planned again."""
        busy = self._references.busy
        chunks = dict(
            zip(reversed(batch.slots), reversed(batch.chunks), strict=True)
        )  # of one that is there twice, the first
        left = tuple(slot for slot in dict.fromkeys(batch.slots) if slot not in busy)
        if len(left) == len(batch.slots):
            return batch
        size = batch.size_bytes // len(batch.slots) * (len(batch.slots) - len(left))
        self._cache.leases.release(batch.lease, [slot for slot in batch.slots if slot in busy])
        self.backlog.shrink(size)
        if not left:
            self._cache.leases.end(batch.lease)
        return structs.replace(
            batch, slots=left, chunks=[chunks[slot] for slot in left], size_bytes=batch.size_bytes - size
        )

    def _pump(self, queue: StoreQueue) -> None:
        if not queue.client.answers:
            self._drop(queue, queue.drop_all(DropReason.ADAPTER_DOWN), DropReason.ADAPTER_DOWN)
            return
        now = self._clock.monotonic()
        while job := queue.next_job(self._jobs + 1, now):
            self._jobs += 1
            try:
                self._submit(job)
            except BaseException:
                queue.complete(job, (), now)
                self._release(job)
                raise
        self._drop(queue, *queue.drop_excess(now))

    def _submit(self, job: StoreJob) -> None:
        client = job.queue.client
        if self._cache.checks is not None:
            self._leave_out_changed(self._cache.checks, job)
            if not job.units:
                job.queue.complete(job, (), self._clock.monotonic())
                return
        self._cache.seal([unit.slot for unit in job.units], self._clock.wall_ns())
        self._events.publish(StoreSubmitted(client.name, job.number, len(job.units), job.size_bytes))
        client.submit_store([unit.item for unit in job.units], self._inbox, job)

    def _leave_out_changed(self, checks: ReadChecks, job: StoreJob) -> None:
        """Objects that were overwritten in L1 since they were published go to no adapter."""
        changed = set(checks.changed([unit.slot for unit in job.units]))
        if not changed:
            return
        bad = replace(job, units=[unit for unit in job.units if unit.slot in changed])
        bad.size_bytes = sum(unit.size_bytes for unit in bad.units)
        job.units = [unit for unit in job.units if unit.slot not in changed]
        job.size_bytes -= bad.size_bytes
        bad.queue.complete(bad, [Outcome.DAMAGED] * len(bad.units), self._clock.monotonic())
        self._release(bad)

    def _answered(self, job: StoreJob, outcomes: Sequence[Outcome], released: bool) -> None:
        now = self._clock.monotonic()
        stored = sum(outcome is Outcome.DONE for outcome in outcomes)
        failed = len(outcomes) - stored
        if job.queue.complete(job, outcomes, now):
            self._events.publish(
                StoreCompleted(
                    job.queue.client.name,
                    job.number,
                    stored,
                    failed,
                    now - job.started,
                    job.stored_bytes,
                    job.waited_seconds,
                    job.request_id,
                )
            )
        self._release(job) if released else self._keep(job)

    def _release(self, job: StoreJob) -> None:
        """The adapter is done with the job's buffers.  Once: what another adapter still reads must not be released twice."""
        units, job.units = job.units, ()
        if job.kept:
            for unit in units:
                unit.kept -= 1
        self._references.finish(units)

    def _keep(self, job: StoreJob) -> None:
        """It has answered, and is not done with them."""
        if not job.kept:
            job.kept = True
            self._references.keep(job.units)

    def _drop(self, queue: StoreQueue, units: Sequence[StoreUnit], reason: DropReason) -> None:
        self._publish_drop(queue, units, reason)
        self._references.finish(units)

    def _publish_drop(self, queue: StoreQueue, units: Sequence[StoreUnit], reason: DropReason) -> None:
        if units:
            size = sum(unit.size_bytes for unit in units)
            self._events.publish(StoresDropped(queue.client.name, len(units), size, reason))

    def _counts_of(self, client: AdapterClient) -> StoreCounts | None:
        return next((queue.counters.now for queue in self._queues if queue.client is client), None)
