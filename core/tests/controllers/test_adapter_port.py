"""Jobs of an adapter are answered exactly once, with their token: early, late, or when it is shut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from core.tests.controllers.adapter_desk import KEYS, Desk
from lmcache_core.contracts.completion import JobId
from lmcache_core.controllers.adapter_jobs import JobAnswer, JobReleased
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.results import Outcome


def test_an_answer_comes_once_with_its_token(desk: Desk) -> None:
    desk.client.submit_lookup(KEYS, desk.inbox, "token")
    desk.adapter.finish(desk.adapter.waiting[0])
    assert desk.answers() == [JobAnswer("token", (Outcome.MISSING,) * 3, released=True)]
    assert desk.answers() == []
    assert desk.client.expire(10**9) is None


def test_a_batch_of_nothing_is_answered(desk: Desk) -> None:
    desk.client.submit_lookup([], desk.inbox, "token")
    desk.adapter.finish(desk.adapter.waiting[0])
    assert desk.answers() == [JobAnswer("token", (), released=True)]


def test_an_answer_before_submit_has_returned_is_not_lost(desk: Desk) -> None:
    original = desk.adapter.submit_lookup

    def eager(keys: Any) -> JobId:
        job = original(keys)
        desk.adapter.finish(desk.adapter.waiting[0])
        desk.client.deliver()
        return job

    desk.adapter.submit_lookup = eager  # type: ignore[method-assign]
    desk.client.submit_lookup(KEYS, desk.inbox, "token")
    assert desk.answers() == [JobAnswer("token", (Outcome.MISSING,) * 3, released=True)]


def test_a_late_job_has_timed_out_and_its_release_is_told_apart(desk: Desk) -> None:
    desk.client.submit_lookup(KEYS, desk.inbox, "token")
    assert desk.client.expire(desk.clock.monotonic() + 29) is not None
    desk.client.expire(desk.clock.monotonic() + 30)
    assert desk.answers() == [JobAnswer("token", (Outcome.TIMED_OUT,) * 3, released=False)]
    assert not desk.client.answers
    desk.adapter.finish(desk.adapter.waiting[0])
    assert desk.answers() == [JobReleased("token")]
    assert desk.client.answers


def test_what_a_late_lookup_pinned_is_unpinned(desk: Desk) -> None:
    desk.adapter.objects = {key.object_id: b"x" for key in KEYS[:2]}
    desk.client.submit_lookup(KEYS, desk.inbox, "token")
    desk.client.expire(desk.clock.monotonic() + 31)
    desk.adapter.finish(desk.adapter.waiting[0])
    desk.answers()
    assert not any(desk.adapter.pins.values())


def test_an_adapter_that_keeps_its_buffers_is_broken_until_it_lets_go(desk: Desk) -> None:
    desk.client.submit_lookup(KEYS, desk.inbox, "token")
    job = desk.adapter.waiting[0]
    desk.adapter.time_out(job)
    assert desk.answers() == [JobAnswer("token", (Outcome.TIMED_OUT,) * 3, released=False)]
    assert not desk.client.answers
    desk.adapter.let_go(job)
    assert desk.answers() == [JobReleased("token")]
    assert desk.client.answers


def test_a_job_that_slips_in_while_its_adapter_is_shut_is_answered(desk: Desk) -> None:
    """Nobody looks for its completions or its deadline any more."""

    def submit_as_it_is_shut(keys: Sequence[ObjectKey]) -> JobId:
        desk.client.abandon()
        desk.client.expire(0.0)
        desk.client.shut()
        return JobId(99)

    desk.adapter.submit_delete = submit_as_it_is_shut  # type: ignore[method-assign]
    desk.client.submit_delete(KEYS, desk.inbox, "late")
    assert desk.inbox.drain() == [JobAnswer("late", (Outcome.TIMED_OUT,) * 3, released=False)]
    assert desk.client.unanswered == 0
