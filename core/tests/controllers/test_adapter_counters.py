"""What an adapter was given is what it has answered and what it has not, at every moment."""

from __future__ import annotations

import threading
from collections.abc import Callable

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lmcache_core.contracts.counts import AdapterCounts
from lmcache_core.contracts.l2_adapter import StoreItem
from lmcache_core.controllers.adapter_jobs import AdapterCounters, PendingJob, Verb
from lmcache_core.jobs.queues import Inbox
from lmcache_core.model.keys import HashChain, KeySpace, ObjectKey
from lmcache_core.model.results import Outcome
from lmcache_devkit.borrowed_memory import BorrowedMemory
from lmcache_devkit.fake_clock import FakeClock

KEY = ObjectKey(KeySpace("m", 0, 0, "", 16, HashChain.BLAKE3, bytes(16)), bytes(32))
BYTES = 4096


class CountersMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.counters = AdapterCounters(self.clock)
        self.memory = BorrowedMemory(BYTES)
        self.item = StoreItem(KEY, self.memory.lend(BYTES))
        self.inbox: Inbox[object] = Inbox()
        self.open: list[PendingJob] = []
        self.busy = 0.0
        self.done_bytes = 0

    @rule(verb=st.sampled_from(("store", "lookup", "load", "delete")), size=st.integers(0, 5))
    def give(self, verb: Verb, size: int) -> None:
        subject = self.item if verb in ("store", "load") else KEY
        now = self.clock.monotonic()
        job = PendingJob(verb, [subject] * size, "token", self.inbox, now + 30, now)
        self.counters.given(job)
        self.open.append(job)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        job = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        outcomes = data.draw(st.lists(st.sampled_from(Outcome), min_size=job.size, max_size=job.size))
        self.counters.answered(job, outcomes)
        if job.verb in ("store", "load"):
            self.done_bytes += BYTES * outcomes.count(Outcome.DONE)

    @rule(seconds=st.integers(1, 9))
    def pass_time(self, seconds: int) -> None:
        self.busy += seconds * bool(self.open)
        self.clock.advance(seconds)

    @invariant()
    def it_adds_up(self) -> None:
        account = self.counters.snapshot()
        assert all(row.adds_up for row in account.verbs.values())
        assert account.busy_seconds == self.busy
        for verb, row in account.verbs.items():
            mine = [job for job in self.open if job.verb == verb]
            assert row.jobs - row.answered == len(mine)
            assert row.pending_objects == sum(job.size for job in mine)
            is_data = verb in ("store", "load")
            assert row.pending_bytes == is_data * BYTES * row.pending_objects
        assert sum(row.done_bytes for row in account.verbs.values()) == self.done_bytes

    def teardown(self) -> None:
        self.inbox.close()


TestCounters = CountersMachine.TestCase
TestCounters.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


class ReadMeanwhile(FakeClock):
    """A clock during whose reading another thread takes a snapshot of the counters."""

    def __init__(self) -> None:
        super().__init__()
        self.read: Callable[[], AdapterCounts] | None = None
        self.readings: list[AdapterCounts] = []

    def monotonic(self) -> float:
        now = super().monotonic()
        read, self.read = self.read, None
        if read is not None:
            self.advance(1)
            self._reader = threading.Thread(target=lambda: self.readings.append(read()))
            self._reader.start()
            self._reader.join(
                0.2
            )  # it waits for the thread that asks for the time, if that one has locked the counters
        return now

    def all_readings(self) -> list[AdapterCounts]:
        self._reader.join()
        return self.readings


def test_the_time_that_it_was_busy_never_falls() -> None:
    clock = ReadMeanwhile()
    counters = AdapterCounters(clock)
    job = PendingJob("lookup", [KEY], "token", Inbox[object](), clock.monotonic() + 30, clock.monotonic())
    counters.given(job)
    clock.advance(5)
    clock.read = counters.snapshot
    counters.answered(job, [Outcome.DONE])
    (meanwhile,) = clock.all_readings()
    assert meanwhile.busy_seconds <= counters.snapshot().busy_seconds


def test_time_is_counted_once_where_a_job_begins_before_the_last_one_has_ended() -> None:
    clock = FakeClock()
    counters = AdapterCounters(clock)
    first, second = (PendingJob("lookup", [KEY], "token", Inbox[object](), 30.0, clock.monotonic()) for _ in range(2))
    counters.given(first)
    clock.advance(3)
    counters.answered(first, [Outcome.DONE])
    counters.given(second)  # begun when the first one was, and given only now
    clock.advance(2)
    counters.answered(second, [Outcome.DONE])
    assert counters.snapshot().busy_seconds == 5.0
