"""An L2 adapter that completes jobs on the test's cue only."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.completion import BuffersReleased, Completion, CompletionSource, JobDone, JobId
from lmcache_core.contracts.l1_memory import BorrowedBuffer
from lmcache_core.contracts.l2_adapter import L2Adapter, LoadItem, StoreItem
from lmcache_core.jobs.queues import Inbox
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.results import KeyPage, Outcome, Usage

Verb = Literal["store", "lookup", "load", "delete"]
JUNK = 0xEE


@dataclass(frozen=True, slots=True, eq=False)
class CueJob:
    """A job that waits for its cue."""

    job: JobId
    verb: Verb
    keys: tuple[ObjectKey, ...]
    buffers: tuple[BorrowedBuffer, ...] = ()


class CueAdapter(L2Adapter):
    """Tests decide when and how each job ends: `finish` does what was asked, at that moment and not before; `fail` and
    `time_out` do not; after a `time_out` the buffers stay borrowed, and are scribbled on, until `release_buffers`.  One
    thread."""

    capabilities = Capability.DELETE | Capability.USAGE

    def __init__(self) -> None:
        self.objects: dict[bytes, bytes] = {}
        self.pins: Counter[bytes] = Counter()
        self.waiting: list[CueJob] = []
        self.keeping: list[CueJob] = []
        """Jobs that were answered and still have their buffers."""
        self.rejected: list[tuple[ObjectKey, Outcome]] = []
        self._numbers = itertools.count(1)
        self._completions: Inbox[Completion] = Inbox()

    # --- cues

    def finish(self, job: CueJob) -> None:
        """Do it now, and say so."""
        self.waiting.remove(job)
        self._completions.post(JobDone(job.job, tuple(self._do(job))))

    def fail(self, job: CueJob, outcome: Outcome = Outcome.FAILED) -> None:
        self.waiting.remove(job)
        self._scribble(job)
        self._completions.post(JobDone(job.job, (outcome,) * len(job.keys)))

    def time_out(self, job: CueJob) -> None:
        """Answer, and keep the buffers."""
        self.waiting.remove(job)
        self.keeping.append(job)
        self._completions.post(JobDone(job.job, (Outcome.TIMED_OUT,) * len(job.keys), released=False))

    def release_buffers(self, job: CueJob) -> None:
        """Write into the buffers of a load one last time, and release them."""
        self.keeping.remove(job)
        self._scribble(job)
        self._completions.post(BuffersReleased(job.job))

    # --- the contract

    def submit_store(self, batch: Sequence[StoreItem]) -> JobId:
        return self._wait("store", [item.key for item in batch], [item.buffer for item in batch])

    def submit_lookup(self, keys: Sequence[ObjectKey]) -> JobId:
        return self._wait("lookup", keys)

    def submit_load(self, batch: Sequence[LoadItem]) -> JobId:
        return self._wait("load", [item.key for item in batch], [item.buffer for item in batch])

    def submit_delete(self, keys: Sequence[ObjectKey]) -> JobId:
        return self._wait("delete", keys)

    def unpin(self, keys: Sequence[ObjectKey]) -> None:
        for key in keys:
            self.pins[key.object_id] -= 1

    def reject(self, key: ObjectKey, outcome: Outcome) -> None:
        self.rejected.append((key, outcome))
        self.objects.pop(key.object_id, None)

    def completions(self) -> CompletionSource:
        return self._completions

    def usage(self) -> Usage | None:
        return Usage(sum(map(len, self.objects.values())), None, len(self.objects))

    def list_keys(self, cursor: str | None, limit: int) -> KeyPage:
        return KeyPage((), None)

    def close(self, deadline_seconds: float) -> None:
        self._completions.close()

    # --- inside

    def _wait(self, verb: Verb, keys: Sequence[ObjectKey], buffers: Sequence[BorrowedBuffer] = ()) -> JobId:
        job = CueJob(JobId(next(self._numbers)), verb, tuple(keys), tuple(buffers))
        self.waiting.append(job)
        return job.job

    def _do(self, job: CueJob) -> list[Outcome]:
        outcomes = []
        for number, key in enumerate(job.keys):
            there = self.objects.get(key.object_id)
            match job.verb:
                case "store":
                    self.objects[key.object_id] = bytes(job.buffers[number].view)
                    there = b""
                case "load" if there is not None:
                    job.buffers[number].view[:] = there
                case "lookup" if there is not None:
                    self.pins[key.object_id] += 1
                case "delete":
                    self.objects.pop(key.object_id, None)
            outcomes.append(Outcome.MISSING if there is None else Outcome.DONE)
        return outcomes

    def _scribble(self, job: CueJob) -> None:
        if job.verb == "load":
            for buffer in job.buffers:
                buffer.view[:] = bytes([JUNK]) * buffer.length
