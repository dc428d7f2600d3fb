"""What an adapter was given and what came of it, counted exactly."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, get_args

from lmcache_core.contracts.clock import Clock
from lmcache_core.controllers.adapter_jobs import PendingJob, Verb
from lmcache_core.model.results import Outcome


@dataclass(slots=True)
class VerbCounts:
    """Jobs of one kind since the start.  At every moment:

    objects == sum(outcomes.values()) + pending_objects
    """

    jobs: int = 0
    answered: int = 0
    """By the adapter, by its deadline, or because it could not take them."""
    objects: int = 0
    pending_objects: int = 0
    pending_bytes: int = 0
    """Of stores and loads without an answer."""
    outcomes: dict[str, int] = field(default_factory=dict)
    """Objects of answered jobs."""
    done_bytes: int = 0
    """Of stores and loads: of the objects that are done."""
    seconds: float = 0.0
    """That answered jobs took, all together."""

    @property
    def adds_up(self) -> bool:
        return self.objects == sum(self.outcomes.values()) + self.pending_objects


class Declined(NamedTuple):
    """What an adapter has and a lookup missed, but was not loaded because computing it is faster."""

    lookups: int = 0
    objects: int = 0
    object_bytes: int = 0


class AdapterCounts(NamedTuple):
    """All of one moment."""

    verbs: Mapping[str, VerbCounts]
    busy_seconds: float
    """In which there was a job without an answer."""
    rejected: int
    """Loaded, and not what they claim to be."""
    declined: Declined = Declined()
    """What the prefetch policy left there."""
    damaged: int = 0
    """Of the rejected ones: ours by name, but short, torn or altered."""


class AdapterCounters:
    """Safe from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards all below
        self._verbs = {verb: VerbCounts() for verb in get_args(Verb)}
        self._pending = 0
        self._busy_since = self._idle_since = 0.0
        self._busy_seconds = 0.0
        self._rejected = self._damaged = 0
        self._declined = Declined()
        self.faults = 0
        """Times that the adapter raised or broke its contract, on whatever thread."""

    def given(self, job: PendingJob) -> None:
        """The adapter is about to be asked."""
        size = job.size_bytes = sum(_sizes(job))
        with self._lock:
            if not self._pending:
                self._busy_since = max(job.begun, self._idle_since)
            self._pending += 1
            row = self._verbs[job.verb]
            row.jobs += 1
            row.objects += job.size
            row.pending_objects += job.size
            row.pending_bytes += size

    def answered(self, job: PendingJob, outcomes: Sequence[Outcome]) -> None:
        """That job has its outcomes.  To be said once."""
        if outcomes.count(Outcome.DONE) == len(outcomes):
            done, counts = job.size_bytes, {Outcome.DONE.value: len(outcomes)}
        else:
            pairs = zip(_sizes(job), outcomes, strict=False)
            done = sum([size for size, outcome in pairs if outcome is Outcome.DONE])
            counts = Counter([outcome.value for outcome in outcomes])
        with self._lock:
            now = self._clock.monotonic()  # not before: an account taken meanwhile would say that more time has passed
            self._pending -= 1
            if not self._pending:
                self._busy_seconds += max(0.0, now - self._busy_since)
                self._idle_since = now
            row = self._verbs[job.verb]
            row.answered += 1
            row.pending_objects -= job.size
            row.pending_bytes -= job.size_bytes
            row.done_bytes += done
            row.seconds += max(0.0, now - job.begun)
            for outcome, count in counts.items():
                row.outcomes[outcome] = row.outcomes.get(outcome, 0) + count

    def rejected(self, outcome: Outcome) -> None:
        with self._lock:
            self._rejected += 1
            self._damaged += outcome is Outcome.DAMAGED

    def declined(self, objects: int, object_bytes: int) -> None:
        """By the prefetch policy, for one lookup."""
        with self._lock:
            before = self._declined
            self._declined = Declined(before.lookups + 1, before.objects + objects, before.object_bytes + object_bytes)

    def fault(self) -> None:
        with self._lock:
            self.faults += 1

    def snapshot(self) -> AdapterCounts:
        with self._lock:
            now = self._clock.monotonic()
            busy = self._busy_seconds + (max(0.0, now - self._busy_since) if self._pending else 0.0)
            verbs = {verb: replace(row, outcomes=dict(row.outcomes)) for verb, row in self._verbs.items()}
            return AdapterCounts(verbs, busy, self._rejected, self._declined, self._damaged)


def _sizes(job: PendingJob) -> list[int]:
    """Bytes of each object, where the job is about bytes."""
    return [item.buffer.length for item in job.subjects] if job.verb in ("store", "load") else []
