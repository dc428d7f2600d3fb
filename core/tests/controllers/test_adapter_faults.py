"""An adapter is third-party code: whatever it says or raises, its jobs are answered exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.tests.controllers.adapter_harness import KEYS, AdapterHarness
from lmcache_core.contracts.completion import BuffersReleased, JobDone, JobId
from lmcache_core.controllers.adapter_jobs import JobAnswer, JobReleased
from lmcache_core.model.results import Outcome


def test_the_wrong_number_of_outcomes_is_a_failure(harness: AdapterHarness) -> None:
    harness.client.submit_lookup(KEYS, harness.inbox, "token")
    harness.adapter._completions.post(JobDone(harness.adapter.waiting[0].job, (Outcome.DONE,)))
    assert harness.answers() == [JobAnswer("token", (Outcome.FAILED,) * 3, released=True)]
    assert harness.client.counters.faults == 1


def test_what_an_adapter_raises_is_a_failed_job(harness: AdapterHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("no")

    for verb in ("submit_delete", "unpin", "usage"):
        monkeypatch.setattr(harness.adapter, verb, broken)
    outcomes: list[Sequence[Outcome]] = []
    harness.client.delete_soon(KEYS, outcomes.append)
    assert outcomes == [(Outcome.FAILED,) * 3]
    deletes = harness.client.counters.snapshot().verbs["delete"]
    assert (deletes.jobs, deletes.answered, deletes.outcomes) == (1, 1, {"failed": 3})
    harness.client.unpin(KEYS)
    assert harness.client.status()["usage"] is None
    assert harness.client.counters.faults == 3


def test_completions_of_jobs_that_never_were_are_ignored(harness: AdapterHarness) -> None:
    for number in range(5000):
        harness.adapter._completions.post(JobDone(JobId(10_000 + number), (Outcome.DONE,)))
    assert harness.answers() == []


def test_a_release_before_the_answer_is_a_failure(harness: AdapterHarness) -> None:
    harness.client.submit_lookup(KEYS, harness.inbox, "token")
    job = harness.adapter.waiting[0]
    harness.adapter._completions.post(BuffersReleased(job.job))
    assert harness.answers() == [JobAnswer("token", (Outcome.FAILED,) * 3, released=True)]
    assert (harness.client.answers, harness.client.counters.faults) == (True, 1)
    harness.adapter.finish(job)
    assert harness.answers() == []
    assert harness.client.answers


def test_what_trips_while_it_is_delivered_fails_alone_and_loses_nothing_behind_it(
    harness: AdapterHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    for token in ("first", "second"):
        harness.client.submit_lookup(KEYS, harness.inbox, token)
    for job in list(harness.adapter.waiting):
        harness.adapter.finish(job)

    def trip(*_: Any) -> None:
        raise RuntimeError("injected")

    with monkeypatch.context() as patch:
        patch.setattr(harness.client, "_complete", trip)
        with pytest.raises(RuntimeError):
            harness.client.deliver()
    assert harness.answers() == [
        JobAnswer("first", (Outcome.FAILED,) * 3, released=True),
        JobAnswer("second", (Outcome.MISSING,) * 3, released=True),
    ]
    assert harness.client.answers
    assert harness.client.expire(10**9) is None, "nothing is pending"


@pytest.mark.parametrize("late", [False, True])
def test_a_release_that_trips_still_frees_the_adapter(
    harness: AdapterHarness, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    def trip(*_: Any) -> None:
        raise RuntimeError("injected")

    harness.client.submit_lookup(KEYS, harness.inbox, "token")
    job = harness.adapter.waiting[0]
    if late:
        harness.client.expire(harness.clock.monotonic() + 31)
        harness.adapter.finish(job)
    else:
        harness.adapter.time_out(job)
        harness.answers()
        harness.adapter.release_buffers(job)
    harness.inbox.drain()
    with monkeypatch.context() as patch:
        patch.setattr(harness.client, "_complete", trip)
        with pytest.raises(RuntimeError):
            harness.client.deliver()
    assert harness.answers() == [JobReleased("token")]
    assert harness.client.answers


@pytest.mark.parametrize("outcomes", [None, 3, "abc", (True, False, True), [Outcome.DONE, Outcome.DONE, "done"]])
def test_outcomes_that_are_none_are_a_failure(harness: AdapterHarness, outcomes: Any) -> None:
    harness.client.submit_lookup(KEYS, harness.inbox, "token")
    harness.adapter._completions.post(JobDone(harness.adapter.waiting[0].job, outcomes))
    assert harness.answers() == [JobAnswer("token", (Outcome.FAILED,) * 3, released=True)]
    assert harness.client.counters.faults == 1


def test_what_is_not_a_completion_is_counted_and_what_follows_it_delivered(harness: AdapterHarness) -> None:
    harness.client.submit_lookup(KEYS, harness.inbox, "token")
    harness.adapter._completions.post("nonsense")  # type: ignore[arg-type]
    harness.adapter.finish(harness.adapter.waiting[0])
    assert harness.answers() == [JobAnswer("token", (Outcome.MISSING,) * 3, released=True)]
    assert harness.client.counters.faults == 1


acts = st.tuples(st.sampled_from(("submit", "done", "kept", "release", "time")), st.integers(0, 3))


@settings(max_examples=300, deadline=None)
@given(st.lists(acts, max_size=24))
def test_whatever_an_adapter_says_each_job_is_answered_once_and_released_once(said: list[tuple[str, int]]) -> None:
    harness, heard, jobs = AdapterHarness(), list[Any](), list[JobId]()
    post = harness.adapter._completions.post
    for what, number in [*said, *(("done", number) for number in range(24))]:
        job = jobs[number] if number < len(jobs) else None
        if what == "submit":
            harness.client.submit_lookup(KEYS, harness.inbox, len(jobs))
            jobs.append(harness.adapter.waiting[-1].job)
        elif what == "time":
            harness.clock.advance(31)
            harness.client.expire(harness.clock.monotonic())
        elif job is not None:
            missing = (Outcome.MISSING,) * len(KEYS)
            post(BuffersReleased(job) if what == "release" else JobDone(job, missing, released=what == "done"))
        heard += harness.answers()
    for number in range(len(jobs)):
        mine = [answer for answer in heard if answer.token == number]
        kept = isinstance(mine[0], JobAnswer) and not mine[0].released
        assert [type(answer) for answer in mine] == ([JobAnswer, JobReleased] if kept else [JobAnswer])
    assert harness.client.answers
    assert harness.client.expire(10**9) is None
    assert harness.client.status()["jobs_in_flight"] == 0
    harness.adapter.close(0)
    harness.inbox.close()
