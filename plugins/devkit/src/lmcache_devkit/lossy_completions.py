"""Completions of which some never come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from lmcache_core.contracts.completion import Completion, CompletionSource, JobId
from lmcache_core.jobs.queues import CompletionQueue


class LossyCompletions(CompletionSource):
    """Those of a queue, but for the jobs that are lost: what is said about them is kept back.  Any thread."""

    def __init__(self, queue: CompletionQueue) -> None:
        self._queue = queue
        self._lock = threading.Lock()  # guards the two below, and that nothing is drained while a job gets its number
        self._lost: set[JobId] = set()
        self._kept_back: list[Completion] = []

    def submit(self, submit: Callable[[], JobId], *, lost: bool) -> JobId:
        """Call it; where the job is lost, nothing is ever heard of it."""
        with self._lock:
            job = submit()
            if lost:
                self._lost.add(job)
            return job

    def find(self) -> None:
        """What was lost comes now, and nothing that was submitted before stays lost."""
        with self._lock:
            found, self._kept_back = self._kept_back, []
            self._lost.clear()
        for completion in found:
            self._queue.post(completion)

    def fileno(self) -> int:
        return self._queue.fileno()

    def drain(self) -> Sequence[Completion]:
        with self._lock:
            drained = self._queue.drain()
            if not self._lost:
                return drained
            self._kept_back += [completion for completion in drained if completion.job in self._lost]
            return [completion for completion in drained if completion.job not in self._lost]
