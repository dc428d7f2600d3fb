"""Uses an adapter as a controller does, one job at a time."""

from __future__ import annotations

import select
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.completion import BuffersReleased, Completion, JobDone, JobId
from lmcache_core.contracts.l1_memory import BorrowedBuffer
from lmcache_core.contracts.l2_adapter import L2Adapter, LoadItem, StoreItem
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.object_header import check
from lmcache_core.model.results import Outcome, Usage

WAIT_SECONDS = 30.0
GIVEN_UP_SECONDS = 2.0
"""How long it waits for anything else once one answer has not come."""
CLOSE_GRACE_SECONDS = 4.0
"""So much later than its deadline `close` may return: a machine that is busy is not an adapter that hangs."""


class JobTimedOut(AssertionError):  # noqa: N818 - a check is ended by it, as by CheckTimedOut
    """An answer did not come.  After a few such checks no further one is run: each would wait as long."""


class L2Driver:
    """Waits for jobs, and remembers every completion it saw, every key it stored and every pin it took.

    `submit_*` may be called from any thread, the rest from one."""

    def __init__(
        self,
        adapter: L2Adapter,
        wait_seconds: float = WAIT_SECONDS,
        place: Callable[[ObjectKey, BorrowedBuffer], None] | None = None,
    ) -> None:
        """`place`: puts an object where an adapter that is READ_ONLY finds it; `store` does that then."""
        self.adapter = adapter
        self._place = place
        self.seen: list[Completion] = []
        self.stored: dict[bytes, ObjectKey] = {}
        """Keys that were given to a store, or placed, and not seen gone since, by object id."""
        self.pinned: Counter[ObjectKey] = Counter()
        self.closed = False
        self._wait_seconds = wait_seconds

    # --- whole jobs

    def store(self, *items: tuple[ObjectKey, BorrowedBuffer]) -> tuple[Outcome, ...]:
        """See that these objects are there: through the adapter, or by the way in which they come to one that is READ_ONLY."""
        if self._place is not None:
            for key, buffer in items:
                self._place(key, buffer)
                self.stored[key.object_id] = key
            return (Outcome.DONE,) * len(items)
        return self.own_store(*items)

    def own_store(self, *items: tuple[ObjectKey, BorrowedBuffer]) -> tuple[Outcome, ...]:
        """What the adapter itself makes of a store."""
        return self.finish(self.submit_store(items))

    def load(self, *items: tuple[ObjectKey, BorrowedBuffer]) -> tuple[Outcome, ...]:
        return self.finish(self.submit_load(items))

    def verified_load(self, *items: tuple[ObjectKey, BorrowedBuffer]) -> tuple[Outcome, ...]:
        """Load as core does: nothing is DONE that does not pass the check (where the adapter declares VERIFIES, its own
        answer is taken for it), and the adapter gets the keys that are not to be offered again."""
        verifies = Capability.VERIFIES in self.adapter.capabilities
        outcomes = []
        for (key, buffer), outcome in zip(items, self.load(*items), strict=True):
            found = outcome if verifies or outcome is not Outcome.DONE else check(buffer.view, key).outcome
            if found in (Outcome.DAMAGED, Outcome.FOREIGN):
                self.adapter.reject(key, found)
            outcomes.append(found)
        return tuple(outcomes)

    def lookup(self, *keys: ObjectKey) -> tuple[Outcome, ...]:
        """Those found stay pinned."""
        outcomes = self.finish(self.adapter.submit_lookup(keys))
        self.pinned.update(key for key, outcome in zip(keys, outcomes, strict=True) if outcome is Outcome.DONE)
        return outcomes

    def has(self, *keys: ObjectKey) -> tuple[Outcome, ...]:
        """Look up, and pin nothing."""
        outcomes = self.finish(self.adapter.submit_lookup(keys))
        self.adapter.unpin([key for key, outcome in zip(keys, outcomes, strict=True) if outcome is Outcome.DONE])
        return outcomes

    def delete(self, *keys: ObjectKey) -> tuple[Outcome, ...]:
        outcomes = self.finish(self.adapter.submit_delete(keys))
        for key, outcome in zip(keys, outcomes, strict=True):
            if outcome is Outcome.DONE:
                self.stored.pop(key.object_id, None)
        return outcomes

    def unpin(self, *keys: ObjectKey) -> None:
        self.adapter.unpin(keys)
        self.pinned.subtract(keys)

    def keys(self, limit: int, cursor: str | None = None) -> list[ObjectKey]:
        """All that the adapter lists from the cursor on, page by page.  Fails on a page that is too long."""
        keys: list[ObjectKey] = []
        while True:
            page = self.adapter.list_keys(cursor, limit)
            assert len(page.keys) <= limit, f"a page of {len(page.keys)} keys where at most {limit} were asked for"
            assert page.cursor is None or page.cursor != cursor, "a listing that does not move on"
            keys += page.keys
            if (cursor := page.cursor) is None:
                return keys

    def usage(self) -> Usage | None:
        """What the adapter says that it holds; where it declares USAGE, as soon as it knows.  Fails where it takes too long."""
        end = time.monotonic() + self._wait_seconds
        while (usage := self.adapter.usage()) is None and Capability.USAGE in self.adapter.capabilities:
            assert time.monotonic() < end, f"USAGE is declared, and usage() is None for {self._wait_seconds:g} s"
            time.sleep(0.002)
        return usage

    def close(self, deadline_seconds: float) -> None:
        """Close the adapter.  Fails when that takes much longer than the deadline."""
        self.closed = True
        deadline_seconds = min(deadline_seconds, self._wait_seconds)
        fault: list[Exception] = []

        def close() -> None:
            try:
                self.adapter.close(deadline_seconds)
            except Exception as error:  # noqa: BLE001 - raised below, where the test sees it
                fault.append(error)

        thread = threading.Thread(target=close, name="conformance-close", daemon=True)
        thread.start()
        thread.join(deadline_seconds + CLOSE_GRACE_SECONDS)
        assert not thread.is_alive(), f"close({deadline_seconds:g}) has not returned {CLOSE_GRACE_SECONDS:g} s later"
        if fault:
            raise fault[0]

    # --- jobs in flight

    def submit_store(self, items: Sequence[tuple[ObjectKey, BorrowedBuffer]]) -> JobId:
        self.stored.update((key.object_id, key) for key, _ in items)
        return self.adapter.submit_store([StoreItem(*item) for item in items])

    def submit_load(self, items: Sequence[tuple[ObjectKey, BorrowedBuffer]]) -> JobId:
        return self.adapter.submit_load([LoadItem(*item) for item in items])

    def finish(self, job: JobId) -> tuple[Outcome, ...]:
        """The outcomes of a job.  Fails when they do not come, or the descriptor does not say that they did."""
        return self.done(job).outcomes

    def done(self, job: JobId) -> JobDone:
        """The answer to a job."""
        end = time.monotonic() + self._wait_seconds
        while True:
            for completion in self.seen:
                if isinstance(completion, JobDone) and completion.job == job:
                    return completion
            self._collect(end, f"the answer to job {job}")

    def released(self, job: JobId) -> bool:
        """Has the answer, or what came after it, given the buffers of this job back?  As far as was seen."""
        return BuffersReleased(job) in self.seen or any(
            isinstance(completion, JobDone) and completion.job == job and completion.released
            for completion in self.seen
        )

    def wait_released(self, job: JobId) -> None:
        """Until the buffers of this job are free."""
        end = time.monotonic() + self._wait_seconds
        while not self.released(job):
            self._collect(end, f"the release of job {job}")

    def drain(self) -> None:
        """Take what is waiting now."""
        self.seen += self.adapter.completions().drain()

    def answers(self) -> Counter[JobId]:
        """How often each job was answered so far."""
        self.drain()
        return Counter(completion.job for completion in self.seen if isinstance(completion, JobDone))

    def is_quiet(self) -> bool:
        """Does the descriptor say that nothing is waiting?"""
        return not _poll(self.adapter.completions().fileno(), 0)

    def _collect(self, end: float, awaited: str) -> None:
        source = self.adapter.completions()
        if not _poll(source.fileno(), max(end - time.monotonic(), 0)):
            waited, self._wait_seconds = self._wait_seconds, min(self._wait_seconds, GIVEN_UP_SECONDS)
            raise JobTimedOut(f"{awaited} did not come within {waited:g} s")
        self.seen += source.drain()


def _poll(fd: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
