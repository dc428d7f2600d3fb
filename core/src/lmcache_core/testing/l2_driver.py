"""Uses an adapter as a controller does, one job at a time."""

from __future__ import annotations

import select
import time
from collections import Counter

from lmcache_core.contracts.buffers import LentBuffer
from lmcache_core.contracts.completion import BuffersReleased, Completion, JobDone, JobId
from lmcache_core.contracts.l2_adapter import L2Adapter, LoadItem, StoreItem
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.results import Outcome

WAIT_SECONDS = 30.0


class L2Driver:
    """Waits for jobs and remembers every completion it saw.  One thread."""

    def __init__(self, adapter: L2Adapter) -> None:
        self.adapter = adapter
        self.seen: list[Completion] = []

    def store(self, *items: tuple[ObjectKey, LentBuffer]) -> tuple[Outcome, ...]:
        return self.finish(self.adapter.submit_store([StoreItem(*item) for item in items]))

    def load(self, *items: tuple[ObjectKey, LentBuffer]) -> tuple[Outcome, ...]:
        return self.finish(self.adapter.submit_load([LoadItem(*item) for item in items]))

    def lookup(self, *keys: ObjectKey) -> tuple[Outcome, ...]:
        """Those found stay pinned."""
        return self.finish(self.adapter.submit_lookup(keys))

    def has(self, *keys: ObjectKey) -> tuple[Outcome, ...]:
        """Look up, and pin nothing."""
        outcomes = self.lookup(*keys)
        self.adapter.unpin([key for key, outcome in zip(keys, outcomes, strict=True) if outcome is Outcome.DONE])
        return outcomes

    def delete(self, *keys: ObjectKey) -> tuple[Outcome, ...]:
        return self.finish(self.adapter.submit_delete(keys))

    def keys(self, limit: int, cursor: str | None = None) -> list[ObjectKey]:
        """All that the adapter lists from the cursor on, page by page."""
        keys: list[ObjectKey] = []
        while True:
            page = self.adapter.list_keys(cursor, limit)
            keys += page.keys
            if (cursor := page.cursor) is None:
                return keys

    def finish(self, job: JobId) -> tuple[Outcome, ...]:
        """The outcomes of a job.  Fails when they do not come, or the descriptor does not say that they did."""
        return self.done(job).outcomes

    def done(self, job: JobId) -> JobDone:
        """The answer to a job."""
        end = time.monotonic() + WAIT_SECONDS
        while True:
            for completion in self.seen:
                if isinstance(completion, JobDone) and completion.job == job:
                    return completion
            self._collect(end, f"job {job}")

    def wait_released(self, job: JobId) -> None:
        """Until the buffers of this job are free."""
        end = time.monotonic() + WAIT_SECONDS
        while BuffersReleased(job) not in self.seen:
            self._collect(end, f"the release of job {job}")

    def answers(self) -> Counter[JobId]:
        """How often each job was answered so far."""
        self.seen += self.adapter.completions().drain()
        return Counter(completion.job for completion in self.seen if isinstance(completion, JobDone))

    def _collect(self, end: float, awaited: str) -> None:
        source = self.adapter.completions()
        poll = select.poll()
        poll.register(source.fileno(), select.POLLIN)
        if not poll.poll(max(end - time.monotonic(), 0) * 1000):
            raise AssertionError(f"{awaited} did not come within {WAIT_SECONDS} s")
        self.seen += source.drain()
