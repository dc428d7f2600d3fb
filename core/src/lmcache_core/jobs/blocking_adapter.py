"""A whole L2 adapter from a few blocking methods that each deal with one object.

    class Folder(BlockingL2Adapter):
        def store(self, key, buffer):
            self.path(key).write_bytes(buffer.view)
            return Outcome.DONE
        ...

`lmcache_core.builtin.memory_l2` is the worked example.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

from lmcache_core.contracts.buffers import LentBuffer
from lmcache_core.contracts.completion import CompletionSource, JobId
from lmcache_core.contracts.context import AdapterContext
from lmcache_core.contracts.l2_adapter import L2Adapter, LoadItem, StoreItem
from lmcache_core.jobs.completion_queue import CompletionQueue
from lmcache_core.jobs.fault_log import FaultLog
from lmcache_core.jobs.job_table import Job, JobTable
from lmcache_core.jobs.object_guard import ObjectGuard
from lmcache_core.jobs.worker_pool import WorkerPool
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.results import KeyPage, Outcome, Usage


class _Task(NamedTuple):
    """Work for a thread.  Exactly one of the two is called; neither raises."""

    run: Callable[[], None]
    drop: Callable[[], None]


class BlockingL2Adapter(L2Adapter):
    """Write `store`, `load` and `contains` (and `delete`, `usage`, `list_keys` where you declare them).

    What comes with it: batches are split over `workers` daemon threads, loads first; lookups have a thread of their
    own; what a method raises is logged and FAILED for that key alone; pins; one completion per job; `close` within its
    deadline.  `store`, `delete` and `discard` of one object never overlap; everything else may run at the same time on
    several threads.  Call `super().__init__` last, so that a constructor that fails leaves no threads behind.
    """

    def __init__(self, context: AdapterContext, workers: int = 4) -> None:
        self.context: Final = context
        self.__queue = CompletionQueue()
        self.__jobs = JobTable(self.__queue)
        self.__objects = ObjectGuard()
        self.__faults = FaultLog(context.logger, context.clock, f"adapter={context.name}")
        self.__lock = threading.Lock()  # guards the two below
        self.__closed = False
        self.__pools_alive = 2
        name = f"l2-{context.name}"
        self.__pool = WorkerPool[_Task](name, workers, _run, self.__pool_stopped)
        self.__lookups = WorkerPool[_Task](f"{name}-lookup", 1, _run, self.__pool_stopped)

    # What an author writes.

    @abstractmethod
    def store(self, key: ObjectKey, buffer: LentBuffer) -> Outcome:
        """Keep the bytes of the buffer under this key.  DONE (also when it is there already), or REJECTED where there
        is no room.  This and the other methods may block, and may raise."""

    @abstractmethod
    def load(self, key: ObjectKey, buffer: LentBuffer) -> Outcome:
        """Fill the buffer.  DONE only when every byte was written; MISSING; DAMAGED when the object has another length."""

    @abstractmethod
    def contains(self, key: ObjectKey) -> bool:
        """Is there an object under this key?"""

    def delete(self, key: ObjectKey) -> Outcome:
        """Remove it: DONE, or MISSING where there was none.  Never called for a pinned object."""
        return Outcome.REJECTED

    def discard(self, key: ObjectKey, outcome: Outcome) -> bool:
        """What was loaded under this key is DAMAGED or FOREIGN.  True: nothing is in the way of a new object now.

        Until it has returned True, the key is neither offered nor stored again in the life of this adapter."""
        return outcome is Outcome.DAMAGED and self.delete(key) in (Outcome.DONE, Outcome.MISSING)

    def stopped(self) -> None:
        """Called once, after `close`, when no thread of the adapter runs any more.  Give back what was opened."""

    def usage(self) -> Usage | None:
        return None

    def list_keys(self, cursor: str | None, limit: int) -> KeyPage:
        return KeyPage((), None)

    # What follows from it.

    @property
    def in_flight(self) -> int:
        """Objects whose job was not answered yet: the backlog."""
        return self.__jobs.in_flight

    def completions(self) -> CompletionSource:
        return self.__queue

    def submit_store(self, batch: Sequence[StoreItem]) -> JobId:
        job = self.__jobs.open(len(batch), lends_buffers=True)
        return self.__start(self.__pool.submit, job, [partial(self.__store, job, item) for item in batch])

    def submit_load(self, batch: Sequence[LoadItem]) -> JobId:
        job = self.__jobs.open(len(batch), lends_buffers=True)
        return self.__start(self.__pool.submit_urgent, job, [partial(self.__load, item) for item in batch])

    def submit_delete(self, keys: Sequence[ObjectKey]) -> JobId:
        job = self.__jobs.open(len(keys), lends_buffers=False)
        return self.__start(self.__pool.submit, job, [partial(self.__delete, job, key) for key in keys])

    def submit_lookup(self, keys: Sequence[ObjectKey]) -> JobId:
        job = self.__jobs.open(len(keys), lends_buffers=False)
        wanted = tuple(keys)
        task = _Task(partial(self.__lookup_all, job, wanted), partial(self.__fail, job, range(len(wanted))))
        if wanted and not self.__lookups.submit([task]):
            task.drop()
        return job.id

    def unpin(self, keys: Sequence[ObjectKey]) -> None:
        self.__objects.unpin(key.object_id for key in keys)

    def reject(self, key: ObjectKey, outcome: Outcome) -> None:
        """Takes effect at once for lookups and loads; `discard` follows on a thread of the pool."""
        if self.__objects.condemn(key.object_id):
            self.__pool.submit([_Task(partial(self.__discard, key, outcome), _nothing)])

    def close(self, deadline_seconds: float) -> None:
        """Stop.  What was not started by the deadline is FAILED; what is still running then is FAILED too, keeps its
        buffers, and a `BuffersReleased` follows when its thread comes back.  Calling it again does nothing."""
        with self.__lock:
            if self.__closed:
                return
            self.__closed = True
        end = time.monotonic() + deadline_seconds
        unstarted = self.__lookups.close(deadline_seconds)
        unstarted += self.__pool.close(end - time.monotonic())
        for task in unstarted:
            task.drop()
        if stuck := self.__jobs.abandon():
            self.context.logger.error(
                "l2 adapter did not stop adapter=%s deadline_seconds=%.1f objects=%d; their buffers stay lent",
                self.context.name, deadline_seconds, stuck,
            )  # fmt: skip

    # How.

    def __start(
        self, submit: Callable[[Iterable[_Task]], bool], job: Job, works: Sequence[Callable[[], Outcome]]
    ) -> JobId:
        tasks = [
            _Task(partial(self.__finish, job, index, work), partial(self.__fail, job, (index,)))
            for index, work in enumerate(works)
        ]
        if not submit(tasks):
            for task in tasks:
                task.drop()
        return job.id

    def __finish(self, job: Job, index: int, work: Callable[[], Outcome]) -> None:
        self.__jobs.settle(job, index, self.__guarded(work))

    def __fail(self, job: Job, indexes: Iterable[int]) -> None:
        for index in indexes:
            self.__jobs.settle(job, index, Outcome.FAILED)

    def __guarded(self, work: Callable[[], Outcome]) -> Outcome:
        try:
            outcome = work()
        except Exception:  # noqa: BLE001 - a plugin's boundary: a fault at one object is that object's outcome
            self.__faults.exception("an l2 operation raised")
            return Outcome.FAILED
        if isinstance(outcome, Outcome):
            return outcome
        self.__faults.error(f"an l2 operation returned {outcome!r} where an Outcome belongs")  # type: ignore[unreachable]
        return Outcome.FAILED

    def __store(self, job: Job, item: StoreItem) -> Outcome:
        object_id = item.key.object_id
        with self.__objects.changing(object_id):
            if job.answered:  # closed while it waited for its turn
                return Outcome.FAILED
            if self.__objects.is_condemned(object_id):
                return Outcome.REJECTED
            return self.store(item.key, item.buffer)

    def __load(self, item: LoadItem) -> Outcome:
        if self.__objects.is_condemned(item.key.object_id):
            return Outcome.MISSING
        return self.load(item.key, item.buffer)

    def __delete(self, job: Job, key: ObjectKey) -> Outcome:
        with self.__objects.removing(key.object_id) as free:
            if job.answered:
                return Outcome.FAILED
            if not free:
                return Outcome.REJECTED
            return Outcome.MISSING if self.__objects.is_condemned(key.object_id) else self.delete(key)

    def __lookup_all(self, job: Job, keys: Sequence[ObjectKey]) -> None:
        for index, key in enumerate(keys):
            outcome = Outcome.FAILED if job.answered else self.__guarded(partial(self.__lookup, key))
            self.__jobs.settle(job, index, outcome)

    def __lookup(self, key: ObjectKey) -> Outcome:
        # The pin comes first: from then on no delete can slip in between the answer and its promise.
        object_id = key.object_id
        if not self.__objects.pin(object_id):
            return Outcome.MISSING
        found = False
        try:
            found = self.contains(key)
        finally:
            if not found:
                self.__objects.unpin((object_id,))
        return Outcome.DONE if found else Outcome.MISSING

    def __discard(self, key: ObjectKey, outcome: Outcome) -> None:
        object_id = key.object_id
        try:
            with self.__objects.changing(object_id):
                if self.discard(key, outcome):
                    self.__objects.absolve(object_id)
        except Exception:  # noqa: BLE001 - a plugin's boundary; the object stays condemned
            self.__faults.exception("discarding an object raised")

    def __pool_stopped(self) -> None:
        with self.__lock:
            self.__pools_alive -= 1
            if self.__pools_alive:
                return
        try:
            self.stopped()
        except Exception:  # noqa: BLE001 - a plugin's boundary
            self.__faults.exception("stopping an l2 adapter raised")


def _run(task: _Task) -> None:
    task.run()


def _nothing() -> None:
    pass
