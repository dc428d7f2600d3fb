"""An L2 adapter around another one: what goes through it is encoded on the way, and decoded on the way back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from lmcache_core import (
    HEADER_BYTES,
    AdapterContext,
    Capability,
    ChunkLayout,
    CircuitStatus,
    CompletionQueue,
    CompletionSource,
    Condition,
    FaultLog,
    Job,
    JobId,
    JobTable,
    KeyPage,
    L2Adapter,
    LoadItem,
    MemoryRegion,
    ObjectKey,
    Outcome,
    SerdeAdapter,
    SerdeCounts,
    SerdeDirection,
    SerdeLayouts,
    StoreItem,
    Usage,
)
from lmcache_l2_adapter import WorkerPool
from lmcache_serde.chain.inner_answers import InnerAnswers
from lmcache_serde.chain.links import SerdeChain
from lmcache_serde.chain.object_codec import LoadWork, ObjectCodec, ObjectWork, StoreWork, TransferWork
from lmcache_serde.chain.scratch import PAGE_BYTES, Extent, ScratchAllocator, ScratchQueue
from lmcache_serde.chain.size_limits import SizeLimits, WorkPlanner


class OpenWorks:
    """Answers each job in `queue` when its last object is completed.  Any thread."""

    def __init__(self, queue: CompletionQueue) -> None:
        self._jobs = JobTable(queue)
        self._changed = threading.Condition()  # guards the two below
        self._count = 0
        self._closing = False

    def open(self, size: int, *, lends_buffers: bool) -> Job:
        """As `JobTable.open`."""
        return self._jobs.open(size, lends_buffers=lends_buffers)

    def begin(self, work: ObjectWork) -> bool:
        """False after `begin_close`: the object is completed as FAILED."""
        with self._changed:
            self._count += 1
            is_late = self._closing
        if is_late:
            self.complete(work, Outcome.FAILED)
        return not is_late

    def complete(self, work: ObjectWork, outcome: Outcome) -> None:
        """Once for each that was begun.  Its borrowed buffer is not touched any more."""
        self._jobs.settle(work.job, work.index, outcome)
        with self._changed:
            self._count -= 1
            if self._closing and not self._count:
                self._changed.notify_all()

    def begin_close(self) -> None:
        """Nothing more is begun."""
        with self._changed:
            self._closing = True

    def wait(self, seconds: float) -> None:
        """After `begin_close`: until all are completed, or `seconds`."""
        with self._changed:
            self._changed.wait_for(lambda: not self._count, seconds)

    def abandon(self) -> int:
        """As `JobTable.abandon`."""
        return self._jobs.abandon()


INNER_CLOSE_SHARE: Final = 0.25
"""Of the deadline of `close`, for the adapter inside."""
STOP_SECONDS: Final = 1.0
"""Beyond its deadline, `close` waits at most this time for what only has to be answered."""


class ChainedAdapter(SerdeAdapter):
    """Lookups, pins, deletes and listings are those of `inner`, which it owns; `usage` counts what `inner` stores.

    Stores are encoded by worker threads from borrowed memory into memory of its own and go to `inner` from there; loads come
    into that memory and are decoded into borrowed memory.  Each direction has half of it, so that neither waits for the other;
    within one, objects wait for room in the order in which they came."""

    def __init__(
        self,
        context: AdapterContext,
        inner: L2Adapter,
        chain: SerdeChain,
        region: MemoryRegion,
        layouts: SerdeLayouts,
        workers: int,
    ) -> None:
        """`region` is one that `inner` was opened with, and is not shared.  Where this raises, `inner` is still the
        caller's."""
        self.inner: Final = inner
        self.chain: Final = chain
        self.capabilities = inner.capabilities & ~(Capability.ZERO_COPY | Capability.ANY_LENGTH) | Capability.VERIFIES
        self._context = context
        self._layouts = layouts
        self._any_length = Capability.ANY_LENGTH in inner.capabilities
        self._faults = FaultLog(context.logger, context.clock, f"adapter={context.name}")
        self._codec = ObjectCodec(
            chain,
            self._faults,
            pads=not self._any_length,
            trusts=Capability.VERIFIES in inner.capabilities,
            is_shared=Capability.SHARED in inner.capabilities,
        )
        self._region = region
        half = region.length // 2 // PAGE_BYTES * PAGE_BYTES
        self._stores = ScratchQueue[StoreWork](ScratchAllocator(0, half), self._start_store)
        self._loads = ScratchQueue[LoadWork](ScratchAllocator(half, half), self._start_load)
        stored_bytes_max = None if self._any_length else inner.max_object_bytes
        self._limits = SizeLimits(chain, half, stored_bytes_max)
        self.max_object_bytes = None if chain.needs_elements else self._limits.largest_object_bytes()
        self._queue = CompletionQueue()
        self._works = OpenWorks(self._queue)
        self._planner = WorkPlanner(chain, layouts, half, self._faults)
        self._hurrying = False
        """Most of the time to finish is over: what was not encoded yet is left."""
        self._over = False
        """All of it is: what was loaded is not decoded any more, either."""
        self._closed = threading.Event()
        self._close_turn = threading.Lock()  # held from the first `close` on
        name = f"l2-{context.name}-serde"
        self._pool = WorkerPool[Callable[[], None]](name, workers, _call, _nothing)
        self._answers = InnerAnswers(name, inner, self._faults)
        layouts.listen(self._look_at)

    # --- jobs

    def submit_store(self, batch: Sequence[StoreItem]) -> JobId:
        job = self._works.open(len(batch), lends_buffers=True)
        for index, (key, buffer) in enumerate(batch):
            work = StoreWork(job, index, key, buffer)
            if self._may_begin(work) and not self._stores.add(work, work.scratch_bytes):
                self._works.complete(work, Outcome.FAILED)
        return job.id

    def submit_load(self, batch: Sequence[LoadItem]) -> JobId:
        job = self._works.open(len(batch), lends_buffers=True)
        for index, (key, buffer) in enumerate(batch):
            work = LoadWork(job, index, key, buffer)
            if self._may_begin(work) and not self._loads.add(work, work.scratch_bytes):
                self._works.complete(work, Outcome.FAILED)
        return job.id

    def submit_lookup(self, keys: Sequence[ObjectKey]) -> JobId:
        return self._pass_on(self.inner.submit_lookup, keys)

    def submit_delete(self, keys: Sequence[ObjectKey]) -> JobId:
        return self._pass_on(self.inner.submit_delete, keys)

    def completions(self) -> CompletionSource:
        return self._queue

    # --- its serdes

    @property
    def lossy(self) -> tuple[str, ...]:
        return self.chain.lossy

    @property
    def needs_elements(self) -> bool:
        return self.chain.needs_elements

    def serde_counts(self) -> Mapping[tuple[str, SerdeDirection], SerdeCounts]:
        return self.chain.counters.rows()

    def refusals(self) -> Mapping[str, int]:
        return {str(reason): count for reason, count in self.chain.counters.refusals().items()}

    # --- what the adapter inside does

    def unpin(self, keys: Sequence[ObjectKey]) -> None:
        self.inner.unpin(keys)

    def reject(self, key: ObjectKey, outcome: Outcome) -> None:
        self.inner.reject(key, outcome)

    def usage(self) -> Usage | None:
        return self.inner.usage()

    def conditions(self) -> Sequence[Condition]:
        return self.inner.conditions()

    def list_keys(self, cursor: str | None, limit: int) -> KeyPage:
        return self.inner.list_keys(cursor, limit)

    def delete_other_versions(self) -> int:
        return self.inner.delete_other_versions()

    @property
    def circuit(self) -> CircuitStatus | None:
        """None where the adapter inside has no circuit breaker."""
        status = getattr(self.inner, "circuit", None)
        return status if isinstance(status, CircuitStatus) else None

    # --- the end

    def close(self, deadline_seconds: float) -> None:
        if not self._close_turn.acquire(blocking=False):
            self._closed.wait(deadline_seconds)
            return
        try:
            self._close(deadline_seconds)
        finally:  # whatever happens, every job is answered
            if stuck := self._works.abandon():
                self._context.logger.error(
                    "l2 adapter did not stop adapter=%s deadline_seconds=%.1f objects=%d; their buffers stay borrowed",
                    self._context.name, deadline_seconds, stuck,
                )  # fmt: skip
            self._closed.set()

    def _close(self, deadline_seconds: float) -> None:
        self._layouts.ignore(self._look_at)
        end = time.monotonic() + deadline_seconds
        self._works.begin_close()
        self._works.wait(deadline_seconds * (1 - INNER_CLOSE_SHARE))
        self._hurrying = True
        for work in [*self._stores.close(), *self._loads.close()]:
            self._works.complete(work, Outcome.FAILED)
        try:
            self.inner.close(max(end - time.monotonic(), 0.0))
        finally:
            end = max(end, time.monotonic() + STOP_SECONDS)
            self._works.wait(end - time.monotonic())
            self._pool.begin_close()
            unstarted = self._pool.end_close(end)
            self._over = True
            for task in unstarted:
                task()  # it finds out that there is nothing to do any more
            self._pool.join(end)
            self._answers.end()
            self._answers.join(max(end - time.monotonic(), 0.0))

    def _may_begin(self, work: TransferWork) -> bool:
        """False where it comes to nothing, and is completed."""
        if not self._works.begin(work):
            return False
        if outcome := self._planner.fault_of(work):
            self._works.complete(work, outcome)
            return False
        return True

    # --- a store: room, encode, inside

    def _start_store(self, work: StoreWork, extent: Extent) -> bool:
        if self._pool.submit([partial(self._encode, work, extent)]):
            return True
        self._works.complete(work, Outcome.FAILED)
        return False

    def _encode(self, work: StoreWork, extent: Extent) -> None:
        outcome = Outcome.FAILED
        kept, is_inside = extent, False
        try:
            if work.job.answered or self._hurrying:
                return
            encoded, length = self._codec.encode(work, self._area(extent))
            if encoded is not Outcome.DONE:
                outcome = encoded
                return
            kept = self._stores.shrink(extent, length)
            item = StoreItem(work.key, work.borrowed(self._region, kept, length))
            on_done, on_released = partial(self._stored, work, kept), partial(self._stores.give, kept)
            is_inside = self._answers.submit(lambda: self.inner.submit_store([item]), 1, on_done, on_released)
        finally:
            if not is_inside:
                self._works.complete(work, outcome)
                self._stores.give(kept)

    def _stored(self, work: StoreWork, extent: Extent, outcomes: Sequence[Outcome], released: bool) -> None:
        """What was borrowed to us is free in any case: the adapter inside was given other memory."""
        self._works.complete(work, outcomes[0])
        if released:
            self._stores.give(extent)

    # --- a load: room, inside, decode

    def _start_load(self, work: LoadWork, extent: Extent) -> bool:
        length = HEADER_BYTES + work.plan.stored_bytes_max
        self._area(extent)[:HEADER_BYTES] = bytes(
            HEADER_BYTES
        )  # an older header must not vouch for what is not written
        item = LoadItem(work.key, work.borrowed(self._region, extent, length)._replace(at_most=self._any_length))
        on_done, on_released = partial(self._loaded, work, extent), partial(self._loads.give, extent)
        if not work.job.answered and self._answers.submit(
            lambda: self.inner.submit_load([item]), 1, on_done, on_released
        ):
            return True
        self._works.complete(work, Outcome.FAILED)
        return False

    def _loaded(self, work: LoadWork, extent: Extent, outcomes: Sequence[Outcome], released: bool) -> None:
        outcome = outcomes[0]
        if outcome is Outcome.DONE and not released:
            self._faults.error("the adapter inside says that it has loaded what it may still write to")
            outcome = Outcome.FAILED
        if outcome is Outcome.DONE and self._pool.submit_urgent([partial(self._decode, work, extent)]):
            return
        self._works.complete(work, Outcome.FAILED if outcome is Outcome.DONE else outcome)
        if released:
            self._loads.give(extent)

    def _decode(self, work: LoadWork, extent: Extent) -> None:
        outcome = Outcome.FAILED
        try:
            if not (work.job.answered or self._over):
                outcome = self._codec.decode(work, self._area(extent))
        finally:
            self._works.complete(work, outcome)
            self._loads.give(extent)

    # --- inside

    def _area(self, extent: Extent) -> memoryview:
        return self._region.view[extent.offset : extent.end]

    def _pass_on(self, submit: Callable[[Sequence[ObjectKey]], JobId], keys: Sequence[ObjectKey]) -> JobId:
        job = self._works.open(len(keys), lends_buffers=False)
        works = [ObjectWork(job, index, key) for index, key in enumerate(keys)]

        def on_done(outcomes: Sequence[Outcome], released: bool) -> None:
            for work, outcome in zip(works, outcomes, strict=True):
                self._works.complete(work, outcome)

        started = [work for work in works if self._works.begin(work)]
        if not started:
            return job.id
        if len(started) < len(works) or not self._answers.submit(lambda: submit(keys), len(keys), on_done, _nothing):
            for work in started:  # it is being closed, or the adapter inside takes nothing
                self._works.complete(work, Outcome.FAILED)
        return job.id

    def fault_of(self, layout: ChunkLayout) -> str | None:
        """Why no chunk of this layout will ever be stored; None where they can be."""
        return self._limits.fault_of(layout)

    def _look_at(self, layout: ChunkLayout) -> None:
        if fault := self.fault_of(layout):
            self._context.logger.error(
                "l2 adapter will reject what is stored adapter=%s reason=%s", self._context.name, fault
            )


def _call(task: Callable[[], None]) -> None:
    task()


def _nothing() -> None:
    pass
