"""Jobs of one adapter: those without an answer, and the messages that their submitters get."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from lmcache_core.contracts.completion import Completion, JobId
from lmcache_core.jobs.inbox import Inbox
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.results import Outcome


@dataclass(frozen=True, slots=True)
class JobAnswer:
    """The outcomes of a job.  `token` is what it was submitted with."""

    token: Any
    outcomes: tuple[Outcome, ...]
    released: bool


@dataclass(frozen=True, slots=True)
class JobReleased:
    """A job that kept its buffers beyond its answer has let go of them."""

    token: Any


Answer = JobAnswer | JobReleased


class AdapterListener(Protocol):
    """Is told what an adapter has, as its answers say so.  Called on the client's threads; must neither block nor raise."""

    def stored(self, objects: Sequence[tuple[ObjectKey, int]]) -> None:
        """The adapter has these objects now, of so many bytes each."""

    def may_have_stored(self, objects: Sequence[tuple[ObjectKey, int]]) -> None:
        """It was over time with these, and has them or has them not; as long as their buffers are lent, they may come."""

    def hit(self, keys: Sequence[ObjectKey]) -> None:
        """A lookup found these."""

    def deleting(self, keys: Sequence[ObjectKey]) -> None:
        """Somebody else is about to delete these; `deleted` follows."""

    def deleted(self, keys: Sequence[ObjectKey], gone: Sequence[ObjectKey]) -> None:
        """That is over.  Some of them are gone, unless they have come again since."""


EARLY_MAX: Final = 1024
"""Completions kept for jobs that are still being submitted; more can only be for jobs that never were."""

Verb = Literal["store", "lookup", "load", "delete"]


@dataclass(slots=True, eq=False)
class PendingJob:
    """Answered into `inbox`, with the token that it was submitted with."""

    verb: Verb
    subjects: Sequence[Any]
    """Keys of a lookup or a delete, items of a store or a load."""
    token: Any
    inbox: Inbox[Any]
    deadline: float
    begun: float = 0.0
    size_bytes: int = 0
    """Of stores and loads; counted when the job is given."""
    answered: bool = False
    overdue: bool = False
    """It was answered, by the adapter or by its deadline, and still has its buffers."""

    @property
    def size(self) -> int:
        return len(self.subjects)


class PendingJobs:
    """Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the three below
        self._jobs: dict[JobId, PendingJob] = {}
        self._early: dict[JobId, list[Completion]] = {}
        self._overdue = 0

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def overdue(self) -> int:
        """Jobs that were answered and still have their buffers."""
        return self._overdue

    @property
    def unanswered(self) -> int:
        """Jobs that were not answered."""
        with self._lock:
            return sum(not pending.answered for pending in self._jobs.values())

    def add(self, job: JobId, pending: PendingJob) -> tuple[list[Completion], bool]:
        """The adapter has taken a job.  Returns what it has said of it already, and whether no other one waits for its
        answer: jobs that only keep their buffers have no deadline."""
        with self._lock:
            first = all(other.answered for other in self._jobs.values())
            self._jobs[job] = pending
            return self._early.pop(job, []), first

    def find(self, completion: Completion) -> PendingJob | None:
        """The job that this is about.  None where its submission has not returned: `add` will hand it out."""
        with self._lock:
            pending = self._jobs.get(completion.job)
            if pending is None and len(self._early) < EARLY_MAX:
                self._early.setdefault(completion.job, []).append(completion)
            return pending

    def settle(self, job: JobId, pending: PendingJob, released: bool) -> bool:
        """It has its answer, and its buffers no more if they are `released`.  True: it was answered before."""
        with self._lock:
            was_answered, pending.answered = pending.answered, True
            if not released:
                self._keep(pending)
            elif self._jobs.pop(job, None) is not None and pending.overdue:
                self._overdue -= 1
        return was_answered

    def expire(self, now: float) -> tuple[list[PendingJob], float | None]:
        """Those whose deadline is over, and when that of the next one is; None when nothing waits for an answer."""
        with self._lock:
            waiting = [pending for pending in self._jobs.values() if not pending.answered]
            late = [pending for pending in waiting if pending.deadline <= now]
            for pending in late:
                pending.answered = True
                self._keep(pending)
            return late, min((pending.deadline for pending in waiting if not pending.answered), default=None)

    def subjects(self, verbs: Collection[Verb]) -> list[Any]:
        """Of all jobs of these kinds."""
        with self._lock:
            return [item for pending in self._jobs.values() if pending.verb in verbs for item in pending.subjects]

    def _keep(self, pending: PendingJob) -> None:
        self._overdue += not pending.overdue
        pending.overdue = True
