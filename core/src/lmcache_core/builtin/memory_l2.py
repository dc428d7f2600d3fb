"""The `memory` adapter: a second tier in this process's own memory.

It is for trials and tests, and the example of an adapter on the bare contract.  Adapters of backends that block, wait or
fail start from a base class of lmcache-l2-adapter instead, which adds retries, a circuit breaker and time limits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from heapq import nsmallest
from queue import Empty, SimpleQueue
from typing import Annotated, NamedTuple

from pydantic import Field

from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.completion import CompletionSource, JobId
from lmcache_core.contracts.l1_memory import BorrowedBuffer
from lmcache_core.contracts.l2_adapter import AdapterContext, L2Adapter, LoadItem, StoreItem
from lmcache_core.contracts.settings import PluginSettings
from lmcache_core.jobs.fault_log import FaultLog
from lmcache_core.jobs.queues import CompletionQueue, Job, JobTable
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.results import KeyPage, Outcome, Usage

CAPABILITIES = Capability.DELETE | Capability.USAGE | Capability.LIST | Capability.ANY_LENGTH


class MemorySettings(PluginSettings):
    """How much the `memory` adapter may keep."""

    max_size_gb: Annotated[
        float, Field(gt=0, allow_inf_nan=False, description="Most that is kept, in GiB, header pages included.")
    ] = 1.0


class Task(NamedTuple):
    """A call for the object at `place` in its job."""

    job: Job
    place: int
    method: Callable[..., Outcome]
    arguments: tuple[object, ...]


class Worker:
    """Runs tasks one after the other on a daemon thread, which holds no adapter while it is idle."""

    def __init__(self, name: str, jobs: JobTable, faults: FaultLog) -> None:
        self._jobs = jobs
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._lock = threading.Lock()  # guards the one below, and puts tasks in front of the end
        self._closing = False
        self._thread = threading.Thread(target=_work, args=(self._tasks, jobs, faults), name=name, daemon=True)
        self._thread.start()

    def submit(self, tasks: Sequence[Task]) -> None:
        """Run these, or answer FAILED for each once `begin_close` was called.  Any thread; never blocks."""
        with self._lock:
            closing = self._closing
            for task in () if closing else tasks:
                self._tasks.put(task)
        for task in tasks if closing else ():
            self._jobs.settle(task.job, task.place, Outcome.FAILED)

    def begin_close(self) -> None:
        """Take nothing more.  The thread ends after what is queued."""
        with self._lock:
            if not self._closing:
                self._closing = True
                self._tasks.put(None)

    def end_close(self, end: float) -> None:
        """Wait until `end` by the monotonic clock, then answer FAILED for what was not started."""
        self._thread.join(max(end - time.monotonic(), 0.0))
        try:
            while True:
                if task := self._tasks.get_nowait():
                    self._jobs.settle(task.job, task.place, Outcome.FAILED)
        except Empty:
            self._tasks.put(None)


def _work(tasks: SimpleQueue[Task | None], jobs: JobTable, faults: FaultLog) -> None:
    while (task := tasks.get()) is not None:
        outcome = Outcome.FAILED
        try:
            outcome = task.method(*task.arguments)
        except BaseException:  # noqa: BLE001 - a thread's top: a fault at one object is its outcome
            faults.exception("an l2 operation raised")
        jobs.settle(task.job, task.place, outcome)
        del task  # or an idle thread keeps the last task's buffer


class MemoryAdapter(L2Adapter):
    """Keeps whole objects as bytes.  Nothing survives the process.

    Lookups, loads and changes have a thread each: none waits for another, and changes of an object never overlap."""

    capabilities = CAPABILITIES

    def __init__(self, settings: MemorySettings, context: AdapterContext) -> None:
        self.context = context
        self._capacity = int(settings.max_size_gb * 2**30)
        self._lock = threading.Lock()  # guards changes of the four below
        self._objects: dict[bytes, tuple[ObjectKey, bytes]] = {}
        self._used = 0
        self._pins: dict[bytes, int] = {}
        self._foreign: set[bytes] = set()
        self._queue = CompletionQueue()
        self._jobs = JobTable(self._queue)
        faults = FaultLog(context.logger, context.clock, f"adapter={context.name}")
        self._workers = [
            Worker(f"l2-{context.name}-{each}", self._jobs, faults) for each in ("lookup", "load", "change")
        ]
        self._lookups, self._loads, self._changes = self._workers

    # One object at a time, on a worker's thread.

    def store(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        object_id = key.object_id
        if object_id in self._foreign:
            return Outcome.REJECTED
        if object_id in self._objects:
            return Outcome.DONE
        if self._used + buffer.length > self._capacity:  # only this thread adds
            return Outcome.REJECTED
        try:
            data = bytes(buffer.view)
        except MemoryError:
            return Outcome.REJECTED
        with self._lock:
            self._objects[object_id] = (key, data)
            self._used += len(data)
        return Outcome.DONE

    def load(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        _, data = self._objects.get(key.object_id, (key, None))
        if data is None or key.object_id in self._foreign:
            return Outcome.MISSING
        if not buffer.takes(len(data)):
            return Outcome.DAMAGED
        buffer.view[: len(data)] = data
        return Outcome.DONE

    def contains(self, key: ObjectKey) -> bool:
        return key.object_id in self._objects and key.object_id not in self._foreign

    def delete(self, key: ObjectKey) -> Outcome:
        with self._lock:
            if key.object_id in self._pins:
                return Outcome.REJECTED
            if key.object_id in self._foreign:
                return Outcome.MISSING
            return self._remove(key.object_id)

    def stored_bytes(self, key: ObjectKey) -> int | None:
        """Length of what is kept under this key, header page included."""
        _, data = self._objects.get(key.object_id, (key, None))
        return None if data is None else len(data)

    def _lookup(self, key: ObjectKey) -> Outcome:
        """An object that is DONE has one more pin."""
        if not self.contains(key):
            return Outcome.MISSING
        with self._lock:
            if not self.contains(key):  # deleted meanwhile
                return Outcome.MISSING
            self._pins[key.object_id] = self._pins.get(key.object_id, 0) + 1
            return Outcome.DONE

    def _remove(self, object_id: bytes) -> Outcome:
        """Called with the lock."""
        _, data = self._objects.pop(object_id, (None, None))
        if data is None:
            return Outcome.MISSING
        self._used -= len(data)
        return Outcome.DONE

    # The contract.

    def submit_store(self, batch: Sequence[StoreItem]) -> JobId:
        return self._submit(self._changes, self.store, batch, lends_buffers=True)

    def submit_load(self, batch: Sequence[LoadItem]) -> JobId:
        return self._submit(self._loads, self.load, batch, lends_buffers=True)

    def submit_lookup(self, keys: Sequence[ObjectKey]) -> JobId:
        return self._submit(self._lookups, self._lookup, [(key,) for key in keys])

    def submit_delete(self, keys: Sequence[ObjectKey]) -> JobId:
        return self._submit(self._changes, self.delete, [(key,) for key in keys])

    def unpin(self, keys: Sequence[ObjectKey]) -> None:
        with self._lock:
            for key in keys:
                pins = self._pins.pop(key.object_id, 0)
                if pins > 1:
                    self._pins[key.object_id] = pins - 1

    def reject(self, key: ObjectKey, outcome: Outcome) -> None:
        with self._lock:
            if outcome is Outcome.DAMAGED:
                self._remove(key.object_id)
            elif key.object_id in self._objects:
                self._foreign.add(key.object_id)

    def completions(self) -> CompletionSource:
        return self._queue

    def usage(self) -> Usage:
        return Usage(self._used, self._capacity, len(self._objects))

    def list_keys(self, cursor: str | None, limit: int) -> KeyPage:
        """In the order of object ids; the cursor is the last one that was given, as hex digits."""
        after = bytes.fromhex(cursor or "")
        with self._lock:
            page = nsmallest(limit, ((i, key, len(data)) for i, (key, data) in self._objects.items() if i > after))
        keys, sizes = tuple(key for _, key, _ in page), tuple(size for _, _, size in page)
        return KeyPage(keys, page[-1][0].hex() if len(page) == limit else None, sizes)

    def close(self, deadline_seconds: float) -> None:
        end = time.monotonic() + deadline_seconds
        for worker in self._workers:
            worker.begin_close()
        for worker in self._workers:
            worker.end_close(end)
        self._jobs.abandon()  # what is still running is FAILED, and releases its buffer when it ends

    def _submit(
        self,
        worker: Worker,
        method: Callable[..., Outcome],
        subjects: Sequence[tuple[object, ...]],
        *,
        lends_buffers: bool = False,
    ) -> JobId:
        job = self._jobs.open(len(subjects), lends_buffers=lends_buffers)
        worker.submit([Task(job, place, method, subject) for place, subject in enumerate(subjects)])
        return job.id
