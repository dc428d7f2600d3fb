"""The client of one L2 adapter: jobs with deadlines, answered into the inbox of their submitter.

An adapter is third-party code.  What it raises is a failed job; what it does not answer in time has timed out, and
while such a job still has its buffers the adapter counts as broken and is given nothing more.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Final

from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.completion import BuffersReleased, Completion, JobDone, JobId
from lmcache_core.contracts.l2_adapter import CircuitStatus, L2Adapter, LoadItem, StoreItem
from lmcache_core.contracts.l2_eviction import AdapterListener
from lmcache_core.contracts.policies import AdapterFacts
from lmcache_core.controllers.adapter_feed import AdapterFeed
from lmcache_core.controllers.adapter_jobs import (
    AdapterCounters,
    JobAnswer,
    JobReleased,
    Mailbox,
    OutcomesOnly,
    PendingJob,
    PendingJobs,
    Verb,
)
from lmcache_core.jobs.queues import Inbox
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.results import KeyPage, Outcome, Usage

logger = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.2


class AdapterClient:
    """Implements `contracts.server_control.AdapterAccess` and `contracts.l2_eviction.EvictedAdapter`.

    Completions are handled on the completion thread, those that come before `submit_*` has
    returned on the submitter's."""

    def __init__(
        self, index: int, name: str, adapter: L2Adapter, capabilities: Capability, clock: Clock, timeout_seconds: float
    ) -> None:
        self.index = index
        self.name = name
        self.adapter = adapter
        self.capabilities = capabilities
        self._clock = clock
        self.timeout_seconds = timeout_seconds
        """Time limit of a job.  It may be set at any time, for later jobs."""
        self.counters = AdapterCounters(clock)
        self.jobs = PendingJobs()
        self.feed: AdapterFeed | None = None
        """Set before anything runs, if at all."""
        self._undelivered: deque[Any] = deque()
        self._listener: AdapterListener | None = None
        self._wake: Callable[[], None] = lambda: None
        self._closing = False
        self._listing = threading.Condition()  # guards the next, and that no listing begins once it is being closed
        self._listings = 0
        self._retired = False
        self._abandoned = False
        self.abandoned = 0
        """Objects of jobs that were abandoned when the adapter was removed."""
        self._shut = False
        self._published_healthy = True
        self.timeouts = 0

    @property
    def answers(self) -> bool:
        return self.jobs.overdue == 0

    @property
    def loads(self) -> bool:
        """True while loads may be submitted: it is not broken, and not being removed."""
        return self.answers and not self._retired

    @property
    def is_read_only(self) -> bool:
        """Nothing is stored there from here."""
        return Capability.READ_ONLY in self.capabilities

    @property
    def facts(self) -> AdapterFacts:
        return AdapterFacts(self.name, self.capabilities, self.answers)

    def submit_store(self, batch: Sequence[StoreItem], inbox: Inbox[Any], token: Any) -> None:
        self._submit("store", self.adapter.submit_store, batch, inbox, token)

    def submit_lookup(self, keys: Sequence[ObjectKey], inbox: Inbox[Any], token: Any) -> None:
        self._submit("lookup", self.adapter.submit_lookup, keys, inbox, token)

    def submit_load(self, batch: Sequence[LoadItem], inbox: Inbox[Any], token: Any) -> None:
        self._submit("load", self.adapter.submit_load, batch, inbox, token)

    def delete_soon(self, keys: Sequence[ObjectKey], on_answer: Callable[[Sequence[Outcome]], None]) -> None:
        self._submit("delete", self.adapter.submit_delete, keys, OutcomesOnly(on_answer), None)

    def delete(self, keys: Sequence[ObjectKey], is_over: Callable[[], bool]) -> Sequence[Outcome] | None:
        if self._listener is not None:
            self._listener.deleting(keys)
        answers: SimpleQueue[Sequence[Outcome]] = SimpleQueue()  # an answer may come after the caller has left
        self.delete_soon(keys, answers.put)
        while not is_over():
            try:
                outcomes = answers.get(timeout=_LOOK_SECONDS)
            except Empty:
                continue
            if self._listener is not None:
                pairs = zip(keys, outcomes, strict=True)
                gone = [key for key, outcome in pairs if outcome in (Outcome.DONE, Outcome.MISSING)]
                self._listener.deleted(keys, gone)
            return outcomes
        return None

    def unpin(self, keys: Sequence[ObjectKey]) -> None:
        if keys and not self.is_shut:
            self._guard("unpin", lambda: self.adapter.unpin(keys))

    def reject(self, key: ObjectKey, outcome: Outcome) -> None:
        self.counters.rejected(outcome)
        if not self.is_shut:
            self._guard("reject", lambda: self.adapter.reject(key, outcome))

    def usage(self) -> Usage | None:
        usage = self._guard("usage", self.adapter.usage)
        return usage if isinstance(usage, Usage) else None

    @property
    def is_learning(self) -> bool:
        return Capability.USAGE in self.capabilities and self.usage() is None

    def circuit(self) -> CircuitStatus | None:
        """Of its circuit breaker; None where it has none or fails."""
        circuit = self._guard("circuit", lambda: getattr(self.adapter, "circuit", None))
        return circuit if isinstance(circuit, CircuitStatus) else None

    def list_keys(self, cursor: str | None, limit: int) -> KeyPage | None:
        page = self._while_open("list_keys", lambda: self.adapter.list_keys(cursor, limit))
        return page if isinstance(page, KeyPage) else None

    def delete_other_versions(self) -> int | None:
        removed = self._while_open("delete_other_versions", lambda: self.adapter.delete_other_versions())
        return removed if isinstance(removed, int) else None

    def _while_open(self, verb: str, call: Callable[[], object]) -> object:
        """A call that may block, for which `close` waits."""
        with self._listing:
            if self.is_shut or self._closing:
                return None
            self._listings += 1
        try:
            return self._guard(verb, call)
        finally:
            with self._listing:
                self._listings -= 1
                self._listing.notify_all()

    def in_use(self) -> set[ObjectKey]:
        return {item.key for item in self.jobs.subjects(("store", "load"))}

    def status(self) -> dict[str, object]:
        usage = self.usage()
        counters = getattr(self.adapter, "counters", None)
        circuit = self.circuit()
        return {
            "name": self.name,
            "jobs_in_flight": len(self.jobs),
            "jobs_overdue": self.jobs.overdue,
            "timeouts": self.timeouts,
            "faults": self.counters.faults,
            "usage": usage._asdict() if usage else None,
            "circuit": {**circuit._asdict(), "state": circuit.state.value} if circuit else None,
            "counters": dict(self._guard("counters", counters) or {}) if counters else {},
        }

    # --- the end of it, while the server goes on

    @property
    def borrowed_bytes(self) -> int:
        """L1 memory that the adapter reads or writes, or may still touch although its job was abandoned."""
        return sum(item.buffer.length for item in self.jobs.subjects(("store", "load")))

    def retire(self) -> None:
        """Nothing is to be loaded from it any more; loads that are under way go on."""
        self._retired = True

    def shut(self) -> None:
        """From now on jobs fail without reaching the adapter, and nothing else does."""
        self._shut = True

    @property
    def is_shut(self) -> bool:
        return self._shut

    def abandon(self) -> None:
        """The time of every job is over, now and from now on: those that wait for their answer get it soon, from the
        completion thread.  The adapter keeps their buffers until it releases them."""
        self._abandoned = True
        self._wake()

    def close(self, deadline_seconds: float) -> None:
        """Close the adapter.  The completion thread must still run, so that its last answers are delivered.  A listing that
        is under way may end first, for as long."""
        with self._listing:
            self._closing = True
            if not self._listing.wait_for(lambda: not self._listings, deadline_seconds):
                logger.warning("l2 adapter is closed while it lists its keys adapter=%s", self.name)
        self._guard("close", lambda: self.adapter.close(deadline_seconds))

    # --- before anything runs

    def watch(self, listener: AdapterListener) -> None:
        self._listener = listener

    def call_when_armed(self, function: Callable[[], None]) -> None:
        """`function` is called when a job is submitted while no other one waits for its answer."""
        self._wake = function

    # --- on the completion thread

    def descriptor(self) -> int | None:
        """The descriptor to poll for completions; None where the adapter has closed it."""
        found = self._guard("completions", lambda: self.adapter.completions().fileno())
        return found if isinstance(found, int) and found >= 0 else None

    def health_change(self) -> bool | None:
        """`answers` where it is not what it was when this was last asked; None where it is."""
        healthy = self.answers
        if healthy == self._published_healthy:
            return None
        self._published_healthy = healthy
        return healthy

    def cut_off(self) -> None:
        """The descriptor was closed: nothing will be heard of this adapter any more but what waits already."""
        self.deliver()
        if not self._closing:
            self.counters.fault()
            logger.error(
                "l2 adapter has closed its completions, its jobs time out from now on adapter=%s; remove it and add it again",
                self.name,
            )

    def deliver(self) -> None:
        """Hand every waiting completion to the submitter of its job.  If this fails on the way, the rest waits for the
        next call."""
        self._undelivered.extend(self._guard("completions", lambda: list(self.adapter.completions().drain())) or ())
        while self._undelivered:
            completion = self._undelivered.popleft()
            if not isinstance(completion, JobDone | BuffersReleased):
                self.counters.fault()
                logger.error(
                    "l2 adapter completed with %.80r, which is not a completion adapter=%s", completion, self.name
                )
                continue
            if pending := self.jobs.find(completion):
                self._hand_over(completion, pending)

    def expire(self, now: float) -> float | None:
        """Time out what is overdue.  Returns when the next job will be, None when nothing is pending."""
        late, upcoming = self.jobs.expire(math.inf if self._abandoned else now)
        for pending in late:
            if self._abandoned:
                self.abandoned += pending.size
            else:
                self.timeouts += 1
            self._answer(pending, (Outcome.TIMED_OUT,) * pending.size, released=False)
        return upcoming

    # --- inside

    def _submit(
        self, verb: Verb, call: Callable[[Sequence[Any]], JobId], subjects: Sequence[Any], inbox: Mailbox, token: Any
    ) -> None:
        if self._shut:
            inbox.post(JobAnswer(token, (Outcome.FAILED,) * len(subjects), released=True))
            return
        now = self._clock.monotonic()
        pending = PendingJob(verb, subjects, token, inbox, now + self.timeout_seconds, now)
        self.counters.given(pending)
        try:
            job = call(subjects)
        except (Exception, SystemExit):
            self.counters.fault()
            logger.exception("l2 adapter failed to take a job adapter=%s", self.name)
            self._answer(pending, (Outcome.FAILED,) * len(subjects), released=True)
            return
        early, first = self.jobs.add(job, pending)
        for completion in early:
            self._hand_over(completion, pending)
        if self.is_shut:
            self.expire(now)  # while it was submitted; the completion thread may look at this adapter no more
        elif first:
            self._wake()

    def _hand_over(self, completion: Completion, pending: PendingJob) -> None:
        was_answered = pending.answered
        try:
            self._complete(completion, pending)
        except BaseException:
            self._fail(completion, pending, was_answered)
            raise

    def _complete(self, completion: Completion, pending: PendingJob) -> None:
        match completion:
            case JobDone(job, given, released):
                outcomes = self._checked(given, pending)
                self._notify_listener(pending, outcomes)
                # If it answered and keeps its buffers, it is broken until it releases them.
                was_late = self.jobs.complete(job, pending, released)
                if not was_late:
                    self._answer(pending, outcomes, released)
                    return
                if pending.verb == "lookup":  # the submitter has its answer and will not unpin what was found
                    found = zip(pending.subjects, outcomes, strict=True)
                    self.unpin([key for key, outcome in found if outcome is Outcome.DONE])
                if released:
                    pending.inbox.post(JobReleased(pending.token))
            case BuffersReleased(job):
                if self.jobs.complete(job, pending, released=True):
                    pending.inbox.post(JobReleased(pending.token))
                    return
                self.counters.fault()
                logger.error("l2 adapter released a job that it had not answered adapter=%s", self.name)
                self._answer(pending, (Outcome.FAILED,) * pending.size, released=True)

    def _answer(self, pending: PendingJob, outcomes: tuple[Outcome, ...], released: bool) -> None:
        """The first answer of a job, and the only one that counts."""
        self.counters.answered(pending, outcomes)
        pending.inbox.post(JobAnswer(pending.token, outcomes, released))

    def _checked(self, outcomes: Any, pending: PendingJob) -> tuple[Outcome, ...]:
        """One outcome for each key; all FAILED where that is not what came."""
        if isinstance(outcomes, Sequence) and len(outcomes) == pending.size:
            checked = tuple(outcomes)
            if set(map(type, checked)) <= {Outcome}:
                return checked
        self.counters.fault()
        logger.error("l2 adapter gave %.80r as the outcomes of %d keys adapter=%s", outcomes, pending.size, self.name)
        return (Outcome.FAILED,) * pending.size

    def _notify_listener(self, pending: PendingJob, outcomes: Sequence[Outcome]) -> None:
        if self.feed is not None and self.feed.journal.is_open:
            self.feed.answered(pending, outcomes)
        if self._listener is None:
            return
        done = _with_outcome(Outcome.DONE, pending, outcomes)
        if pending.verb == "store":
            if done:
                self._listener.stored([(item.key, item.buffer.length) for item in done])
            if late := _with_outcome(Outcome.TIMED_OUT, pending, outcomes):
                self._listener.may_have_stored([(item.key, item.buffer.length) for item in late])
        elif done and pending.verb == "lookup":
            self._listener.hit(done)

    def _fail(self, completion: Completion, pending: PendingJob, was_answered: bool) -> None:
        """Handing over a completion failed: fail its job, and notify the submitter."""
        released = isinstance(completion, BuffersReleased) or completion.released
        self.jobs.complete(completion.job, pending, released)
        if not was_answered:
            self._answer(pending, (Outcome.FAILED,) * pending.size, released)
        elif released:
            pending.inbox.post(JobReleased(pending.token))

    def _guard(self, what: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (Exception, SystemExit):
            self.counters.fault()
            logger.exception("l2 adapter failed adapter=%s call=%s", self.name, what)
            return None


def _with_outcome(wanted: Outcome, pending: PendingJob, outcomes: Sequence[Outcome]) -> list[Any]:
    """Its subjects that have this outcome."""
    return [subject for subject, outcome in zip(pending.subjects, outcomes, strict=True) if outcome is wanted]
