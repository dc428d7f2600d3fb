"""An adapter that answers when a test tells it to."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.completion import BuffersReleased, CompletionSource, JobDone, JobId
from lmcache_core.contracts.l2_adapter import L2Adapter, LoadItem, StoreItem
from lmcache_core.jobs.queues import CompletionQueue
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.results import KeyPage, Outcome, Usage


class SlowAdapter(L2Adapter):
    """Jobs wait until `answer`, in their order.  An abandoned job writes into its buffers until `release`."""

    def __init__(self, missing: Capability = Capability.NONE) -> None:
        self.capabilities = Capability.ANY_LENGTH & ~missing
        self.refuses = False
        """Jobs are not taken: `submit_*` raises."""
        self._objects: dict[bytes, bytes] = {}
        self._queue = CompletionQueue()
        self._ids = itertools.count(1)
        self._lock = threading.Lock()  # guards all below
        self._waiting: deque[tuple[JobId, Callable[[], tuple[Outcome, ...]], list[Any]]] = deque()
        self._kept: deque[tuple[JobId, list[Any]]] = deque()
        self._goes_on = False

    def answer(self, count: int) -> None:
        """The oldest jobs are carried out."""
        with self._lock:
            for _ in range(min(count, len(self._waiting))):
                job, work, _ = self._waiting.popleft()
                self._queue.post(JobDone(job, work()))

    def give_up(self, outcome: Outcome) -> None:
        with self._lock:
            if not self._waiting:
                return
            job, _, buffers = self._waiting.popleft()
            size = max(len(buffers), 1)
            if not buffers:
                self._queue.post(JobDone(job, (Outcome.FAILED,) * size))
                return
            self._queue.post(JobDone(job, (outcome,) * size, released=False))
            self._kept.append((job, buffers))

    def release(self) -> None:
        with self._lock:
            if self._kept:
                job, buffers = self._kept.popleft()
                for buffer in buffers:
                    buffer.view[-1:] = b"\x11"
                self._queue.post(BuffersReleased(job))

    def go_on(self) -> None:
        """From now on everything is answered at once."""
        self.refuses = False
        with self._lock:
            self._goes_on = True
            kept = len(self._kept)
        for _ in range(kept):
            self.release()
        self.answer(10**9)

    def _submit(self, work: Callable[[], tuple[Outcome, ...]], buffers: list[Any]) -> JobId:
        if self.refuses:
            raise RuntimeError("no job is taken")
        with self._lock:
            job = JobId(next(self._ids))
            self._waiting.append((job, work, buffers))
        if self._goes_on:
            self.answer(10**9)
        return job

    def submit_store(self, batch: Sequence[StoreItem]) -> JobId:
        def work() -> tuple[Outcome, ...]:
            for key, buffer in batch:
                self._objects[key.object_id] = bytes(buffer.view)
            return (Outcome.DONE,) * len(batch)

        return self._submit(work, [])

    def submit_load(self, batch: Sequence[LoadItem]) -> JobId:
        def load(item: LoadItem) -> Outcome:
            data = self._objects.get(item.key.object_id)
            if data is None:
                return Outcome.MISSING
            if not item.buffer.takes(len(data)):
                return Outcome.DAMAGED
            item.buffer.view[: len(data)] = data
            return Outcome.DONE

        return self._submit(lambda: tuple(load(item) for item in batch), [item.buffer for item in batch])

    def submit_lookup(self, keys: Sequence[ObjectKey]) -> JobId:
        found = tuple(Outcome.DONE if key.object_id in self._objects else Outcome.MISSING for key in keys)
        return self._submit(lambda: found, [])

    def submit_delete(self, keys: Sequence[ObjectKey]) -> JobId:
        return self._submit(lambda: (Outcome.REJECTED,) * len(keys), [])

    def unpin(self, keys: Sequence[ObjectKey]) -> None:
        pass

    def reject(self, key: ObjectKey, outcome: Outcome) -> None:
        pass

    def completions(self) -> CompletionSource:
        return self._queue

    def usage(self) -> Usage | None:
        return None

    def list_keys(self, cursor: str | None, limit: int) -> KeyPage:
        return KeyPage((), None)

    def close(self, deadline_seconds: float) -> None:
        """What waits is answered; what was abandoned stays borrowed until `release`."""
        with self._lock:
            self._goes_on = True
        self.answer(10**9)
