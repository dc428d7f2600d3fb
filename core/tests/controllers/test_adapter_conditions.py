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


class Watched:
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
def watched() -> Watched:
    return Watched()


@pytest.mark.parametrize(
    ("failed", "done", "names"),
    [(0, 0, []), (0, 500, []), (1, 99, []), (2, 99, ["adapter_jobs_fail"]), (1, 0, ["adapter_jobs_fail"])],
)
@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.TIMED_OUT])
def test_more_than_one_in_a_hundred_is_too_many(
    watched: Watched, failed: int, done: int, names: list[str], outcome: Outcome
) -> None:
    assert watched.names() == []
    watched.answer("delete", *[outcome] * failed, *[Outcome.DONE] * done)
    assert watched.names() == names


@pytest.mark.parametrize("outcome", [Outcome.DAMAGED, Outcome.FOREIGN, Outcome.MISSING, Outcome.REJECTED])
def test_answers_of_a_backend_that_works_are_not_failures(watched: Watched, outcome: Outcome) -> None:
    watched.answer("lookup", *[outcome] * 10)
    assert watched.names() == []


def test_failures_without_an_answer_since_last_a_minute(watched: Watched) -> None:
    watched.answer("lookup", Outcome.FAILED)
    watched.pass_seconds(58)
    assert watched.names() == ["adapter_jobs_fail"]
    watched.pass_seconds(4)
    assert watched.names() == []


def test_they_are_over_when_it_has_gone_well_for_a_moment(watched: Watched) -> None:
    watched.answer("lookup", *[Outcome.FAILED] * 10)
    watched.pass_seconds(3)
    for _ in range(8):
        watched.answer("lookup", Outcome.DONE)
        watched.pass_seconds(1)
    assert watched.names() == ["adapter_jobs_fail"], "they were a moment ago"
    for _ in range(3):
        watched.answer("lookup", Outcome.DONE)
        watched.pass_seconds(1)
    assert watched.names() == []


def test_a_backend_that_flaps_for_an_hour_is_degraded_all_the_time(watched: Watched) -> None:
    seen = []
    for second in range(3600):
        watched.answer("lookup", Outcome.FAILED if second % 8 < 4 else Outcome.DONE)
        watched.clock.advance(1)
        seen.append(watched.names())
    assert seen[1:] == [["adapter_jobs_fail"]] * 3599
    for _ in range(12):
        watched.answer("lookup", Outcome.DONE)
        watched.pass_seconds(1)
    assert watched.names() == []


def test_an_open_circuit_is_one(watched: Watched) -> None:
    watched.adapter.circuit = CircuitStatus(CircuitState.CLOSED, 0, 0, None)  # type: ignore[attr-defined]
    assert watched.names() == []
    watched.adapter.circuit = CircuitStatus(CircuitState.OPEN, 1, 1, 1.0)  # type: ignore[attr-defined]
    assert watched.names() == ["adapter_paused"]
