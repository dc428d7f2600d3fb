"""An adapter is degraded while it is, and not a minute longer than it has to be."""

from __future__ import annotations

import pytest

from lmcache_core import Outcome
from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.l2_adapter import CircuitState, CircuitStatus
from lmcache_core.controllers.adapter_client import AdapterClient
from lmcache_core.controllers.adapter_conditions import AdapterWatch
from lmcache_core.controllers.adapter_jobs import PendingJob, Verb
from lmcache_core.jobs.queues import Inbox
from lmcache_devkit.borrowed_memory import object_key
from lmcache_devkit.cue_adapter import CueAdapter
from lmcache_devkit.fake_clock import FakeClock


class Desk:
    """A client whose jobs are answered as a test says."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.adapter = CueAdapter()
        self.client = AdapterClient(0, "cue", self.adapter, Capability.NONE, self.clock, 30.0)
        self.watch = AdapterWatch(self.clock)

    def answer(self, verb: Verb, *outcomes: Outcome) -> None:
        """As the client counts it."""
        job = PendingJob(verb, [object_key(number) for number in range(len(outcomes))], None, Inbox(), 0.0)
        self.client.counters.given(job)
        self.client.counters.answered(job, outcomes)

    def names(self) -> list[str]:
        return [each.name for each in self.watch.conditions(self.client)]

    def pass_seconds(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.advance(1)
            self.names()


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.mark.parametrize(
    ("failed", "done", "names"),
    [(0, 0, []), (0, 500, []), (1, 99, []), (2, 99, ["adapter_jobs_fail"]), (1, 0, ["adapter_jobs_fail"])],
)
@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.TIMED_OUT])
def test_more_than_one_in_a_hundred_is_too_many(
    desk: Desk, failed: int, done: int, names: list[str], outcome: Outcome
) -> None:
    assert desk.names() == []
    desk.answer("delete", *[outcome] * failed, *[Outcome.DONE] * done)
    assert desk.names() == names


@pytest.mark.parametrize("outcome", [Outcome.DAMAGED, Outcome.FOREIGN, Outcome.MISSING, Outcome.REJECTED])
def test_answers_of_a_backend_that_works_are_no_failures(desk: Desk, outcome: Outcome) -> None:
    desk.answer("lookup", *[outcome] * 10)
    assert desk.names() == []


def test_failures_without_an_answer_since_last_a_minute(desk: Desk) -> None:
    desk.answer("lookup", Outcome.FAILED)
    desk.pass_seconds(58)
    assert desk.names() == ["adapter_jobs_fail"]
    desk.pass_seconds(4)
    assert desk.names() == []


def test_they_are_over_when_it_has_gone_well_for_a_moment(desk: Desk) -> None:
    desk.answer("lookup", *[Outcome.FAILED] * 10)
    desk.pass_seconds(3)
    for _ in range(8):
        desk.answer("lookup", Outcome.DONE)
        desk.pass_seconds(1)
    assert desk.names() == ["adapter_jobs_fail"], "they were a moment ago"
    for _ in range(3):
        desk.answer("lookup", Outcome.DONE)
        desk.pass_seconds(1)
    assert desk.names() == []


def test_a_backend_that_flaps_for_an_hour_is_degraded_all_the_time(desk: Desk) -> None:
    seen = []
    for second in range(3600):
        desk.answer("lookup", Outcome.FAILED if second % 8 < 4 else Outcome.DONE)
        desk.clock.advance(1)
        seen.append(desk.names())
    assert seen[1:] == [["adapter_jobs_fail"]] * 3599
    for _ in range(12):
        desk.answer("lookup", Outcome.DONE)
        desk.pass_seconds(1)
    assert desk.names() == []


def test_an_open_circuit_is_one(desk: Desk) -> None:
    desk.adapter.circuit = CircuitStatus(CircuitState.CLOSED, 0, 0, None)  # type: ignore[attr-defined]
    assert desk.names() == []
    desk.adapter.circuit = CircuitStatus(CircuitState.OPEN, 1, 1, 1.0)  # type: ignore[attr-defined]
    assert desk.names() == ["adapter_paused"]
