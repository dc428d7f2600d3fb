"""Jobs of adapters: those without an answer, the messages that their submitters get, exact counts, and the thread that waits
for completions."""

from __future__ import annotations

import select
import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, get_args

import msgspec

from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.completion import Completion, JobId
from lmcache_core.contracts.counts import AdapterCounts, Declined, VerbCounts
from lmcache_core.contracts.events import AdapterHealthChanged, Publisher
from lmcache_core.jobs.queues import Inbox
from lmcache_core.model.results import Outcome

if TYPE_CHECKING:
    from lmcache_core.controllers.adapter_client import AdapterClient


class JobAnswer(msgspec.Struct, frozen=True):
    """The outcomes of a job.  `token` is what it was submitted with."""

    token: Any
    outcomes: tuple[Outcome, ...]
    released: bool


class JobReleased(msgspec.Struct, frozen=True):
    """A job that kept its buffers beyond its answer has released them."""

    token: Any


Answer = JobAnswer | JobReleased


class Mailbox(Protocol):
    """Takes the messages about a job; from any thread, and never blocks."""

    def post(self, item: Any) -> None: ...


class OutcomesOnly:
    """Where the submitter waits for no buffers: its outcomes alone."""

    def __init__(self, on_answer: Callable[[Sequence[Outcome]], None]) -> None:
        self._on_answer = on_answer

    def post(self, item: Any) -> None:
        if isinstance(item, JobAnswer):
            self._on_answer(item.outcomes)


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
    inbox: Mailbox
    deadline: float
    started: float = 0.0
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
        self.overdue = 0
        """Jobs that were answered, by the adapter or by their deadline, and still have their buffers."""

    def __len__(self) -> int:
        return len(self._jobs)

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

    def complete(self, job: JobId, pending: PendingJob, released: bool) -> bool:
        """It has its answer, and its buffers no more if they are `released`.  True: it was answered before."""
        with self._lock:
            was_answered, pending.answered = pending.answered, True
            if not released:
                self._keep(pending)
            elif self._jobs.pop(job, None) is not None and pending.overdue:
                self.overdue -= 1
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
        self.overdue += not pending.overdue
        pending.overdue = True


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
                self._busy_since = max(job.started, self._idle_since)
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
            now = self._clock.monotonic()  # not before: a snapshot taken meanwhile would say that more time has passed
            self._pending -= 1
            if not self._pending:
                self._busy_seconds += max(0.0, now - self._busy_since)
                self._idle_since = now
            row = self._verbs[job.verb]
            row.answered += 1
            row.pending_objects -= job.size
            row.pending_bytes -= job.size_bytes
            row.done_bytes += done
            row.seconds += max(0.0, now - job.started)
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


class CompletionThread:
    """Waits for every adapter at once; `run` is its body, for the supervisor.  Everything else is for any thread."""

    def __init__(self, clients: Sequence[AdapterClient], clock: Clock, events: Publisher | None = None) -> None:
        self._lock = threading.Lock()  # held to change the clients, not to look at them
        self._clients = tuple(clients)
        self._clock = clock
        self._events = events
        self._wakes: Inbox[None] = Inbox()
        self._stop = False
        for client in clients:
            client.call_when_armed(self._wakes.wake)

    def add(self, client: AdapterClient) -> None:
        """Before the client is given its first job."""
        client.call_when_armed(self._wakes.wake)
        self._change(lambda clients: (*clients, client))

    def remove(self, client: AdapterClient) -> None:
        """Stop polling it."""
        self._change(lambda clients: tuple(other for other in clients if other is not client))

    def look_again(self) -> None:
        """Poll the descriptors anew: an adapter was closed, and the number of its descriptor may be in use again."""
        self._change(lambda clients: (*clients,))

    def run(self) -> None:
        while not self._stop:
            self._serve(self._clients)

    def _serve(self, clients: tuple[AdapterClient, ...]) -> None:
        """As long as these are the clients."""
        poll = select.poll()
        poll.register(self._wakes, select.POLLIN)
        by_descriptor: dict[int, AdapterClient] = {}
        for client in clients:
            if (descriptor := client.descriptor()) is not None:
                poll.register(descriptor, select.POLLIN)
                by_descriptor[descriptor] = client
        for client in clients:
            client.deliver()  # what was left when this thread failed, or the client was looked at last
        while not self._stop and clients is self._clients:
            now = self._clock.monotonic()
            deadlines = [deadline for client in clients if (deadline := client.expire(now)) is not None]
            self._publish_health(clients)
            timeout_ms = max(0.0, min(deadlines) - now) * 1000 + 1 if deadlines else None
            for descriptor, events in poll.poll(timeout_ms):
                if (ready := by_descriptor.get(descriptor)) is None:
                    self._wakes.drain()
                elif events & select.POLLNVAL:
                    poll.unregister(descriptor)
                    ready.cut_off()
                else:
                    ready.deliver()

    def _publish_health(self, clients: Sequence[AdapterClient]) -> None:
        for client in clients:
            healthy = client.health_change()
            if healthy is not None and self._events is not None:
                self._events.publish(AdapterHealthChanged(client.name, healthy))

    def _change(self, function: Callable[[tuple[AdapterClient, ...]], tuple[AdapterClient, ...]]) -> None:
        with self._lock:
            self._clients = function(self._clients)
        self._wakes.wake()

    def stop(self) -> None:
        self._stop = True
        self._wakes.wake()
