"""An adapter is somebody else's code: whatever it says or raises, its jobs are answered exactly once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.tests.controllers.adapter_desk import KEYS, Desk
from lmcache_core.contracts.completion import BuffersReleased, JobDone, JobId
from lmcache_core.controllers.adapter_jobs import JobAnswer, JobReleased
from lmcache_core.model.results import Outcome


def test_the_wrong_number_of_outcomes_is_a_failure(desk: Desk) -> None:
    desk.client.submit_lookup(KEYS, desk.inbox, "token")
    desk.adapter._completions.post(JobDone(desk.adapter.waiting[0].job, (Outcome.DONE,)))
    assert desk.answers() == [JobAnswer("token", (Outcome.FAILED,) * 3, released=True)]
    assert desk.client.faults == 1


def test_what_an_adapter_raises_is_a_failed_job(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("no")

    for verb in ("submit_delete", "unpin", "usage"):
        monkeypatch.setattr(desk.adapter, verb, broken)
    desk.client.submit_delete(KEYS, desk.inbox, "token")
    assert desk.answers() == [JobAnswer("token", (Outcome.FAILED,) * 3, released=True)]
    deletes = desk.client.counters.snapshot().verbs["delete"]
    assert (deletes.jobs, deletes.answered, deletes.outcomes) == (1, 1, {"failed": 3})
    desk.client.unpin(KEYS)
    assert desk.client.status()["usage"] is None
    assert desk.client.faults == 3


def test_completions_of_jobs_that_never_were_are_ignored(desk: Desk) -> None:
    for number in range(5000):
        desk.adapter._completions.post(JobDone(JobId(10_000 + number), (Outcome.DONE,)))
    assert desk.answers() == []


def test_a_release_before_the_answer_is_a_failure(desk: Desk) -> None:
    desk.client.submit_lookup(KEYS, desk.inbox, "token")
    job = desk.adapter.waiting[0]
    desk.adapter._completions.post(BuffersReleased(job.job))
    assert desk.answers() == [JobAnswer("token", (Outcome.FAILED,) * 3, released=True)]
    assert (desk.client.answers, desk.client.faults) == (True, 1)
    desk.adapter.finish(job)
    assert desk.answers() == []
    assert desk.client.answers


def test_what_trips_while_it_is_delivered_fails_alone_and_loses_nothing_behind_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for token in ("first", "second"):
        desk.client.submit_lookup(KEYS, desk.inbox, token)
    for job in list(desk.adapter.waiting):
        desk.adapter.finish(job)

    def trip(*_: Any) -> None:
        raise RuntimeError("injected")

    with monkeypatch.context() as patch:
        patch.setattr(desk.client, "_complete", trip)
        with pytest.raises(RuntimeError):
            desk.client.deliver()
    assert desk.answers() == [
        JobAnswer("first", (Outcome.FAILED,) * 3, released=True),
        JobAnswer("second", (Outcome.MISSING,) * 3, released=True),
    ]
    assert desk.client.answers
    assert desk.client.expire(10**9) is None, "nothing is pending"


@pytest.mark.parametrize("late", [False, True])
def test_a_release_that_trips_still_frees_the_adapter(desk: Desk, monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    def trip(*_: Any) -> None:
        raise RuntimeError("injected")

    desk.client.submit_lookup(KEYS, desk.inbox, "token")
    job = desk.adapter.waiting[0]
    if late:
        desk.client.expire(desk.clock.monotonic() + 31)
        desk.adapter.finish(job)
    else:
        desk.adapter.time_out(job)
        desk.answers()
        desk.adapter.let_go(job)
    desk.inbox.drain()
    with monkeypatch.context() as patch:
        patch.setattr(desk.client, "_complete", trip)
        with pytest.raises(RuntimeError):
            desk.client.deliver()
    assert desk.answers() == [JobReleased("token")]
    assert desk.client.answers


@pytest.mark.parametrize("outcomes", [None, 3, "abc", (True, False, True), [Outcome.DONE, Outcome.DONE, "done"]])
def test_outcomes_that_are_none_are_a_failure(desk: Desk, outcomes: Any) -> None:
    desk.client.submit_lookup(KEYS, desk.inbox, "token")
    desk.adapter._completions.post(JobDone(desk.adapter.waiting[0].job, outcomes))
    assert desk.answers() == [JobAnswer("token", (Outcome.FAILED,) * 3, released=True)]
    assert desk.client.faults == 1


def test_what_is_no_completion_is_counted_and_what_follows_it_delivered(desk: Desk) -> None:
    desk.client.submit_lookup(KEYS, desk.inbox, "token")
    desk.adapter._completions.post("nonsense")  # type: ignore[arg-type]
    desk.adapter.finish(desk.adapter.waiting[0])
    assert desk.answers() == [JobAnswer("token", (Outcome.MISSING,) * 3, released=True)]
    assert desk.client.faults == 1


acts = st.tuples(st.sampled_from(("submit", "done", "kept", "release", "time")), st.integers(0, 3))


@settings(max_examples=300, deadline=None)
@given(st.lists(acts, max_size=24))
def test_whatever_an_adapter_says_each_job_is_answered_once_and_released_once(said: list[tuple[str, int]]) -> None:
    desk, heard, jobs = Desk(), list[Any](), list[JobId]()
    post = desk.adapter._completions.post
    for what, number in [*said, *(("done", number) for number in range(24))]:
        job = jobs[number] if number < len(jobs) else None
        if what == "submit":
            desk.client.submit_lookup(KEYS, desk.inbox, len(jobs))
            jobs.append(desk.adapter.waiting[-1].job)
        elif what == "time":
            desk.clock.advance(31)
            desk.client.expire(desk.clock.monotonic())
        elif job is not None:
            missing = (Outcome.MISSING,) * len(KEYS)
            post(BuffersReleased(job) if what == "release" else JobDone(job, missing, released=what == "done"))
        heard += desk.answers()
    for number in range(len(jobs)):
        mine = [answer for answer in heard if answer.token == number]
        kept = isinstance(mine[0], JobAnswer) and not mine[0].released
        assert [type(answer) for answer in mine] == ([JobAnswer, JobReleased] if kept else [JobAnswer])
    assert desk.client.answers
    assert desk.client.expire(10**9) is None
    assert desk.client.status()["jobs_in_flight"] == 0
    desk.adapter.close(0)
    desk.inbox.close()
