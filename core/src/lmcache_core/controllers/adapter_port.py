"""One L2 adapter, as the controllers see it: jobs with deadlines, answered into the inbox of whoever asked.

An adapter is somebody else's code.  What it raises is a failed job; what it does not answer in time has timed out, and
while such a job still has its buffers the adapter counts as broken and is given nothing more.
"""

from __future__ import annotations

import logging
import select
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.completion import BuffersReleased, Completion, JobDone, JobId
from lmcache_core.contracts.l2_adapter import L2Adapter, LoadItem, StoreItem
from lmcache_core.contracts.policies import AdapterFacts
from lmcache_core.jobs.circuit_breaker import CircuitStatus
from lmcache_core.jobs.inbox import Inbox
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.results import Outcome

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


@dataclass(slots=True, eq=False)
class _Pending:
    token: Any
    inbox: Inbox[Any]
    size: int
    deadline: float
    pins: tuple[ObjectKey, ...] = ()
    """What a lookup may pin, and nobody will unpin if its answer comes too late."""
    answered: bool = False


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
        self._submit(lambda: self.adapter.submit_store(batch), len(batch), inbox, token)

    def submit_lookup(self, keys: Sequence[ObjectKey], inbox: Inbox[Any], token: Any) -> None:
        self._submit(lambda: self.adapter.submit_lookup(keys), len(keys), inbox, token, pins=tuple(keys))

    def submit_load(self, batch: Sequence[LoadItem], inbox: Inbox[Any], token: Any) -> None:
        self._submit(lambda: self.adapter.submit_load(batch), len(batch), inbox, token)

    def unpin(self, keys: Sequence[ObjectKey]) -> None:
        if keys:
            self._guard("unpin", lambda: self.adapter.unpin(keys))

    def reject(self, key: ObjectKey, outcome: Outcome) -> None:
        self._guard("reject", lambda: self.adapter.reject(key, outcome))

    def status(self) -> dict[str, object]:
        usage = self._guard("usage", self.adapter.usage)
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

    # --- on the completion thread

    def call_when_armed(self, function: Callable[[], None]) -> None:
        """`function` is called when the first job of an idle port is submitted."""
        self._wake = function

    def deliver(self) -> None:
        """Hand every waiting completion to whoever submitted its job."""
        for completion in self._guard("completions", self.adapter.completions().drain) or ():
            with self._lock:
                pending = self._pending.get(completion.job)
                if pending is None:
                    # Answered before `submit` returned: kept until the job has a name here.
                    if len(self._early) < EARLY_MAX:
                        self._early.setdefault(completion.job, []).append(completion)
                    continue
            self._complete(completion, pending)

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
        self, call: Callable[[], JobId], size: int, inbox: Inbox[Any], token: Any, pins: tuple[ObjectKey, ...] = ()
    ) -> None:
        pending = _Pending(token, inbox, size, self._clock.monotonic() + self._timeout, pins)
        try:
            job = call()
        except (Exception, SystemExit):
            self.faults += 1
            logger.exception("l2 adapter failed to take a job adapter=%s", self.name)
            inbox.post(JobAnswer(token, (Outcome.FAILED,) * size, released=True))
            return
        with self._lock:
            self._pending[job] = pending
            early = self._early.pop(job, [])
            first = len(self._pending) == 1
        for completion in early:
            self._complete(completion, pending)
        if first:
            self._wake()

    def _complete(self, completion: Completion, pending: _Pending) -> None:
        match completion:
            case JobDone(job, outcomes, released):
                with self._lock:
                    was_late, pending.answered = pending.answered, True
                if not was_late and len(outcomes) != pending.size:
                    self.faults += 1
                    logger.error(
                        "l2 adapter gave %d outcomes for %d keys adapter=%s", len(outcomes), pending.size, self.name
                    )
                    outcomes = (Outcome.FAILED,) * pending.size
                with self._lock:
                    if released:
                        self._forget(job, was_late)
                    elif not was_late:
                        self._overdue += 1  # it answered, but keeps its buffers: broken until it lets go
                if not was_late:
                    pending.inbox.post(JobAnswer(pending.token, outcomes, released))
                    return
                found = zip(pending.pins, outcomes, strict=False)
                self.unpin([key for key, outcome in found if outcome is Outcome.DONE])
                if released:
                    pending.inbox.post(JobReleased(pending.token))
            case BuffersReleased(job):
                with self._lock:
                    self._forget(job, was_overdue=True)
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


class CompletionThread:
    """Waits for every adapter at once; `run` is its body, for the supervisor."""

    def __init__(self, ports: Sequence[AdapterPort], clock: Clock) -> None:
        self._ports = ports
        self._clock = clock
        self._wakes: Inbox[None] = Inbox()
        self._stop = False
        for port in ports:
            port.call_when_armed(self._wakes.wake)

    def run(self) -> None:
        poll = select.poll()
        poll.register(self._wakes, select.POLLIN)
        by_descriptor = {port.adapter.completions().fileno(): port for port in self._ports}
        for descriptor in by_descriptor:
            poll.register(descriptor, select.POLLIN)
        while not self._stop:
            now = self._clock.monotonic()
            deadlines = [deadline for port in self._ports if (deadline := port.expire(now)) is not None]
            timeout_ms = max(0.0, min(deadlines) - now) * 1000 + 1 if deadlines else None
            for descriptor, _ in poll.poll(timeout_ms):
                if port := by_descriptor.get(descriptor):
                    port.deliver()
                else:
                    self._wakes.drain()

    def stop(self) -> None:
        self._stop = True
        self._wakes.wake()
