"""One L2 adapter, as the controllers see it: jobs with deadlines, answered into the inbox of whoever asked.

An adapter is somebody else's code.  What it raises is a failed job; what it does not answer in time has timed out, and
while such a job still has its buffers the adapter counts as broken and is given nothing more.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.completion import BuffersReleased, Completion, JobDone, JobId
from lmcache_core.contracts.l2_adapter import L2Adapter, LoadItem, StoreItem
from lmcache_core.contracts.policies import AdapterFacts
from lmcache_core.jobs.circuit_breaker import CircuitStatus
from lmcache_core.jobs.inbox import Inbox
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.results import KeyPage, Outcome, Usage

logger = logging.getLogger(__name__)

EARLY_MAX = 1024
"""Completions kept for jobs that are still being submitted; more can only be for jobs that never were."""


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


Verb = Literal["store", "lookup", "load", "delete"]


class PortWatcher(Protocol):
    """Is told what an adapter has, as its answers say so.  Called on the port's threads; must neither block nor raise."""

    def stored(self, objects: Sequence[tuple[ObjectKey, int]]) -> None:
        """The adapter has these objects now, of so many bytes each."""

    def hit(self, keys: Sequence[ObjectKey]) -> None:
        """A lookup found these."""


@dataclass(slots=True, eq=False)
class _Pending:
    verb: Verb
    subjects: Sequence[Any]
    """Keys of a lookup or a delete, items of a store or a load."""
    token: Any
    inbox: Inbox[Any]
    deadline: float
    answered: bool = False

    @property
    def size(self) -> int:
        return len(self.subjects)


class AdapterPort:
    """Safe from any thread.  Completions are handled on the completion thread, those that come before `submit_*` has
    returned on the submitter's."""

    def __init__(
        self, index: int, name: str, adapter: L2Adapter, capabilities: Capability, clock: Clock, timeout_seconds: float
    ) -> None:
        self.index = index
        self.name = name
        self.adapter = adapter
        self.capabilities = capabilities
        self._clock = clock
        self._timeout = timeout_seconds
        self._lock = threading.Lock()
        self._pending: dict[JobId, _Pending] = {}
        self._early: dict[JobId, list[Completion]] = {}
        self._undelivered: deque[Any] = deque()
        self._watcher: PortWatcher | None = None
        self._wake: Callable[[], None] = lambda: None
        self._overdue = 0
        self.timeouts = 0
        self.faults = 0

    @property
    def healthy(self) -> bool:
        """False while a job is past its deadline and still has its buffers."""
        return self._overdue == 0

    @property
    def facts(self) -> AdapterFacts:
        return AdapterFacts(self.name, self.capabilities, self.healthy)

    def submit_store(self, batch: Sequence[StoreItem], inbox: Inbox[Any], token: Any) -> None:
        self._submit("store", self.adapter.submit_store, batch, inbox, token)

    def submit_lookup(self, keys: Sequence[ObjectKey], inbox: Inbox[Any], token: Any) -> None:
        self._submit("lookup", self.adapter.submit_lookup, keys, inbox, token)

    def submit_load(self, batch: Sequence[LoadItem], inbox: Inbox[Any], token: Any) -> None:
        self._submit("load", self.adapter.submit_load, batch, inbox, token)

    def submit_delete(self, keys: Sequence[ObjectKey], inbox: Inbox[Any], token: Any) -> None:
        self._submit("delete", self.adapter.submit_delete, keys, inbox, token)

    def unpin(self, keys: Sequence[ObjectKey]) -> None:
        if keys:
            self._guard("unpin", lambda: self.adapter.unpin(keys))

    def reject(self, key: ObjectKey, outcome: Outcome) -> None:
        self._guard("reject", lambda: self.adapter.reject(key, outcome))

    def usage(self) -> Usage | None:
        """What the adapter holds; None where it does not know or fails."""
        usage = self._guard("usage", self.adapter.usage)
        return usage if isinstance(usage, Usage) else None

    def list_keys(self, cursor: str | None, limit: int) -> KeyPage | None:
        """As the adapter's; may block.  None where it fails."""
        page = self._guard("list_keys", lambda: self.adapter.list_keys(cursor, limit))
        return page if isinstance(page, KeyPage) else None

    def in_use(self) -> set[ObjectKey]:
        """What is being stored or loaded right now."""
        with self._lock:
            jobs = [pending for pending in self._pending.values() if pending.verb in ("store", "load")]
        return {item.key for pending in jobs for item in pending.subjects}

    def status(self) -> dict[str, object]:
        usage = self.usage()
        counters = getattr(self.adapter, "counters", None)
        circuit = self._guard("circuit", lambda: getattr(self.adapter, "circuit", None))
        return {
            "name": self.name,
            "healthy": self.healthy,
            "jobs_in_flight": len(self._pending),
            "jobs_overdue": self._overdue,
            "timeouts": self.timeouts,
            "faults": self.faults,
            "usage": usage._asdict() if usage else None,
            "circuit": {**circuit._asdict(), "state": circuit.state.value}
            if isinstance(circuit, CircuitStatus)
            else None,
            "counters": dict(self._guard("counters", counters) or {}) if counters else {},
        }

    def close(self, deadline_seconds: float) -> None:
        """Close the adapter.  The completion thread must still run, so that its last answers are delivered."""
        self._guard("close", lambda: self.adapter.close(deadline_seconds))

    # --- before anything runs

    def watch(self, watcher: PortWatcher) -> None:
        self._watcher = watcher

    def call_when_armed(self, function: Callable[[], None]) -> None:
        """`function` is called when a job is submitted while no other one waits for its answer."""
        self._wake = function

    # --- on the completion thread

    def deliver(self) -> None:
        """Hand every waiting completion to whoever submitted its job.  If this fails on the way, the rest waits for the
        next call."""
        self._undelivered.extend(self._guard("completions", lambda: list(self.adapter.completions().drain())) or ())
        while self._undelivered:
            completion = self._undelivered.popleft()
            if not isinstance(completion, JobDone | BuffersReleased):
                self.faults += 1
                logger.error(
                    "l2 adapter completed with %.80r, which is no completion adapter=%s", completion, self.name
                )
                continue
            with self._lock:
                pending = self._pending.get(completion.job)
                if pending is None:
                    # Answered before `submit` returned: kept until the job has a name here.
                    if len(self._early) < EARLY_MAX:
                        self._early.setdefault(completion.job, []).append(completion)
                    continue
            self._hand_over(completion, pending)

    def expire(self, now: float) -> float | None:
        """Time out what is overdue.  Returns when the next job will be, None when nothing is pending."""
        with self._lock:
            waiting = [pending for pending in self._pending.values() if not pending.answered]
            late = [pending for pending in waiting if pending.deadline <= now]
            for pending in late:
                pending.answered = True
            self._overdue += len(late)
            self.timeouts += len(late)
            upcoming = min((pending.deadline for pending in waiting if not pending.answered), default=None)
        for pending in late:
            logger.warning(
                "l2 job timed out adapter=%s keys=%d timeout_seconds=%.1f (l2_timeout_seconds); the adapter is given "
                "nothing more until it answers",
                self.name,
                pending.size,
                self._timeout,
            )
            pending.inbox.post(JobAnswer(pending.token, (Outcome.TIMED_OUT,) * pending.size, released=False))
        return upcoming

    # --- inside

    def _submit(
        self, verb: Verb, call: Callable[[Sequence[Any]], JobId], subjects: Sequence[Any], inbox: Inbox[Any], token: Any
    ) -> None:
        pending = _Pending(verb, subjects, token, inbox, self._clock.monotonic() + self._timeout)
        try:
            job = call(subjects)
        except (Exception, SystemExit):
            self.faults += 1
            logger.exception("l2 adapter failed to take a job adapter=%s", self.name)
            inbox.post(JobAnswer(token, (Outcome.FAILED,) * len(subjects), released=True))
            return
        with self._lock:
            # Jobs that were answered and keep their buffers have no deadline: nobody waits for one then.
            first = all(other.answered for other in self._pending.values())
            self._pending[job] = pending
            early = self._early.pop(job, [])
        for completion in early:
            self._hand_over(completion, pending)
        if first:
            self._wake()

    def _hand_over(self, completion: Completion, pending: _Pending) -> None:
        was_answered = pending.answered
        try:
            self._complete(completion, pending)
        except BaseException:
            self._fail(completion, pending, was_answered)
            raise

    def _complete(self, completion: Completion, pending: _Pending) -> None:
        match completion:
            case JobDone(job, given, released):
                outcomes = self._checked(given, pending)
                self._tell_watcher(pending, outcomes)
                with self._lock:
                    was_late, pending.answered = pending.answered, True
                    if released:
                        self._forget(job, was_late)
                    elif not was_late:
                        self._overdue += 1  # it answered, but keeps its buffers: broken until it lets go
                if not was_late:
                    pending.inbox.post(JobAnswer(pending.token, outcomes, released))
                    return
                if pending.verb == "lookup":  # nobody will unpin what it found
                    found = zip(pending.subjects, outcomes, strict=True)
                    self.unpin([key for key, outcome in found if outcome is Outcome.DONE])
                if released:
                    pending.inbox.post(JobReleased(pending.token))
            case BuffersReleased(job):
                with self._lock:
                    was_answered, pending.answered = pending.answered, True
                    self._forget(job, was_overdue=was_answered)
                if was_answered:
                    pending.inbox.post(JobReleased(pending.token))
                    return
                self.faults += 1
                logger.error("l2 adapter let go of a job that it had not answered adapter=%s", self.name)
                pending.inbox.post(JobAnswer(pending.token, (Outcome.FAILED,) * pending.size, released=True))

    def _checked(self, outcomes: Any, pending: _Pending) -> tuple[Outcome, ...]:
        """One outcome for each key; all FAILED where that is not what came."""
        if isinstance(outcomes, Sequence) and len(outcomes) == pending.size:
            checked = tuple(outcomes)
            if set(map(type, checked)) <= {Outcome}:
                return checked
        self.faults += 1
        logger.error("l2 adapter gave %.80r as the outcomes of %d keys adapter=%s", outcomes, pending.size, self.name)
        return (Outcome.FAILED,) * pending.size

    def _tell_watcher(self, pending: _Pending, outcomes: Sequence[Outcome]) -> None:
        if self._watcher is None:
            return
        done = [subject for subject, outcome in zip(pending.subjects, outcomes, strict=True) if outcome is Outcome.DONE]
        if done and pending.verb == "store":
            self._watcher.stored([(item.key, item.buffer.length) for item in done])
        elif done and pending.verb == "lookup":
            self._watcher.hit(done)

    def _fail(self, completion: Completion, pending: _Pending, was_answered: bool) -> None:
        """Handing over a completion failed: its job has failed, and whoever waits for it is told so."""
        released = isinstance(completion, BuffersReleased) or completion.released
        with self._lock:
            pending.answered = True
            if released:
                self._forget(completion.job, was_answered)
            elif not was_answered:
                self._overdue += 1
        if not was_answered:
            pending.inbox.post(JobAnswer(pending.token, (Outcome.FAILED,) * pending.size, released))
        elif released:
            pending.inbox.post(JobReleased(pending.token))

    def _forget(self, job: JobId, was_overdue: bool) -> None:
        if self._pending.pop(job, None) is not None and was_overdue:
            self._overdue -= 1

    def _guard(self, what: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (Exception, SystemExit):
            self.faults += 1
            logger.exception("l2 adapter failed adapter=%s call=%s", self.name, what)
            return None
