"""An L2 adapter around another one that goes wrong as planned."""

from __future__ import annotations

import heapq
import itertools
import os
import select
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from lmcache_core.contracts.buffers import LentBuffer
from lmcache_core.contracts.completion import BuffersReleased, Completion, CompletionSource, JobDone, JobId
from lmcache_core.contracts.context import AdapterContext
from lmcache_core.contracts.l2_adapter import L2Adapter, LoadItem, StoreItem
from lmcache_core.jobs.completion_queue import CompletionQueue
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.results import KeyPage, Outcome, Usage
from lmcache_core.testing.fault_plan import Fault, FaultPlan, Verb
from lmcache_core.testing.faulty_settings import FaultySettings
from lmcache_core.testing.lent_memory import UNWRITTEN, LentMemory
from lmcache_core.testing.offer_under_test import OpenableOffer, installed_offer

CLOSE_POLL_SECONDS: Final = 0.002


@dataclass(slots=True, eq=False)
class _Work:
    """One job: what was asked, and what happens to it."""

    job: JobId
    verb: Verb
    subjects: Sequence[Any]
    fault: Fault | None
    torn: LentMemory | None = None
    """Keeps the bytes of a torn store alive."""

    @property
    def bytes(self) -> int:
        return sum(item.buffer.length for item in self.subjects) if self.verb in ("store", "load") else 0


class FaultyAdapter(L2Adapter):
    """Passes everything on to `inner`, which it owns, but for what the plan says.

    Stores and loads share a link of `bytes_per_second`, one job after the other.  A thread of its own forwards what
    `inner` completes."""

    def __init__(
        self, inner: L2Adapter, plan: FaultPlan, *, delay_seconds: float = 0.05, bytes_per_second: float | None = None
    ) -> None:
        self.inner = inner
        self.plan: Final = plan
        self.capabilities = inner.capabilities
        self.max_object_bytes = inner.max_object_bytes
        self._delay_seconds = delay_seconds
        self._bytes_per_second = bytes_per_second
        self._queue = CompletionQueue()
        self._numbers = itertools.count(1)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.RLock()  # guards all below, and draining what `inner` has completed
        self._started: dict[JobId, _Work] = {}
        self._stalled: list[_Work] = []
        self._due: list[tuple[float, int, _Work]] = []
        self._link_free_at = 0.0
        self._closed = False
        self._pump = threading.Thread(target=self._forward_until_closed, name="faulty-adapter", daemon=True)
        self._pump.start()

    def resume(self) -> None:
        """Start what was stalled."""
        with self._lock:
            stalled, self._stalled = self._stalled, []
            for work in stalled:
                self._start(work)

    # --- the contract

    def submit_store(self, batch: Sequence[StoreItem]) -> JobId:
        return self._submit("store", batch)

    def submit_lookup(self, keys: Sequence[ObjectKey]) -> JobId:
        return self._submit("lookup", keys)

    def submit_load(self, batch: Sequence[LoadItem]) -> JobId:
        return self._submit("load", batch)

    def submit_delete(self, keys: Sequence[ObjectKey]) -> JobId:
        return self._submit("delete", keys)

    def unpin(self, keys: Sequence[ObjectKey]) -> None:
        self.inner.unpin(keys)

    def reject(self, key: ObjectKey, outcome: Outcome) -> None:
        self.inner.reject(key, outcome)

    def completions(self) -> CompletionSource:
        return self._queue

    def usage(self) -> Usage | None:
        return self.inner.usage()

    def list_keys(self, cursor: str | None, limit: int) -> KeyPage:
        return self.inner.list_keys(cursor, limit)

    def close(self, deadline_seconds: float) -> None:
        """What is stalled or delayed beyond the deadline is FAILED; a lost answer stays lost."""
        end = time.monotonic() + deadline_seconds
        with self._lock:
            if self._closed:
                return
            self._closed = True
        while self._due and time.monotonic() < end:
            time.sleep(CLOSE_POLL_SECONDS)
        with self._lock:
            unstarted = [*self._stalled, *(work for _, _, work in self._due)]
            self._stalled, self._due = [], []
            for work in unstarted:
                self._answer(work, Outcome.FAILED)
        self.inner.close(max(end - time.monotonic(), 0.0))
        self._forward()
        with self._lock:
            done = not self._started
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)
        if done:
            self._pump.join(max(end - time.monotonic(), 1.0))

    # --- inside

    def _submit(self, verb: Verb, subjects: Sequence[Any]) -> JobId:
        with self._lock:
            work = _Work(JobId(next(self._numbers)), verb, tuple(subjects), self.plan.take(verb))
            if self._closed or work.fault is Fault.FAIL:
                self._answer(work, Outcome.FAILED)
            elif work.fault is Fault.STALL:
                self._stalled.append(work)
            elif seconds := self._seconds_until_start(work):
                heapq.heappush(self._due, (time.monotonic() + seconds, work.job, work))
                os.eventfd_write(self._wake, 1)
            else:
                self._start(work)
            return work.job

    def _seconds_until_start(self, work: _Work) -> float:
        """Its delay, and until its bytes have gone over the link, behind those that were there before.  Under the lock."""
        seconds = self._delay_seconds if work.fault is Fault.DELAY else 0.0
        if not (work.bytes and self._bytes_per_second):
            return seconds
        now = time.monotonic()
        self._link_free_at = max(now, self._link_free_at) + work.bytes / self._bytes_per_second
        return seconds + self._link_free_at - now

    def _start(self, work: _Work) -> None:
        subjects = work.subjects
        if work.fault is Fault.TEAR and work.verb == "store":
            work.torn = LentMemory(sum(item.buffer.length + 4096 for item in subjects) or 1)
            subjects = [StoreItem(item.key, _half(work.torn, item.buffer)) for item in subjects]
        submit = getattr(self.inner, f"submit_{work.verb}")
        self._started[submit(subjects)] = work

    def _answer(self, work: _Work, outcome: Outcome) -> None:
        self._queue.post(JobDone(work.job, (outcome,) * len(work.subjects)))

    def _forward_until_closed(self) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.register(self.inner.completions().fileno(), select.POLLIN)
        while True:
            poll.poll(self._start_due())
            self._forward()
            with self._lock:
                try:
                    os.eventfd_read(self._wake)
                except BlockingIOError:
                    pass
                if self._closed and not (self._started or self._due):
                    fd, self._wake = self._wake, -1
                    os.close(fd)
                    return

    def _start_due(self) -> float | None:
        """Start what is due.  Returns the milliseconds until the next is; None: none is waiting."""
        with self._lock:
            while self._due and self._due[0][0] <= time.monotonic():
                self._start(heapq.heappop(self._due)[2])
            return max(self._due[0][0] - time.monotonic(), 0) * 1000 + 1 if self._due else None

    def _forward(self) -> None:
        with self._lock:
            for completion in self.inner.completions().drain():
                self._pass_on(completion)

    def _pass_on(self, completion: Completion) -> None:
        work = self._started[completion.job]
        last = isinstance(completion, BuffersReleased) or completion.released
        if last:
            del self._started[completion.job]
        if work.fault is Fault.LOSE:
            return
        if isinstance(completion, BuffersReleased):
            self._queue.post(BuffersReleased(work.job))
            return
        if work.fault is Fault.TEAR and work.verb == "load":
            for item, outcome in zip(work.subjects, completion.outcomes, strict=True):
                if outcome is Outcome.DONE:
                    _scribble(item.buffer)
        self._queue.post(JobDone(work.job, completion.outcomes, completion.released))


def _half(memory: LentMemory, buffer: LentBuffer) -> LentBuffer:
    """A copy of which the second half was never written."""
    torn = memory.lend(buffer.length)
    torn.view[: buffer.length // 2] = buffer.view[: buffer.length // 2]
    return torn


def _scribble(buffer: LentBuffer) -> None:
    rest = buffer.length - buffer.length // 2
    buffer.view[buffer.length // 2 :] = UNWRITTEN * rest


def open_faulty(settings: FaultySettings, context: AdapterContext) -> FaultyAdapter:
    inner = OpenableOffer(installed_offer("l2_adapter", settings.inner), settings.inner_settings)
    chances = {fault: getattr(settings, fault.value) for fault in Fault}
    plan = FaultPlan(chances, settings.seed)
    return FaultyAdapter(
        inner.open(context), plan, delay_seconds=settings.delay_seconds, bytes_per_second=settings.bytes_per_second
    )
