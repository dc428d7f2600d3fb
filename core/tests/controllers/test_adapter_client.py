"""Jobs of an adapter are answered exactly once, with their token: early, late, or when it is shut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from core.tests.controllers.adapter_harness import KEYS, AdapterHarness
from lmcache_core.contracts.completion import JobId
from lmcache_core.controllers.adapter_jobs import JobAnswer, JobReleased
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.results import Outcome


def test_an_answer_comes_once_with_its_token(harness: AdapterHarness) -> None:
    harness.client.submit_lookup(KEYS, harness.inbox, "token")
    harness.adapter.finish(harness.adapter.waiting[0])
    assert harness.answers() == [JobAnswer("token", (Outcome.MISSING,) * 3, released=True)]
    assert harness.answers() == []
    assert harness.client.expire(10**9) is None


def test_a_batch_of_nothing_is_answered(harness: AdapterHarness) -> None:
    harness.client.submit_lookup([], harness.inbox, "token")
    harness.adapter.finish(harness.adapter.waiting[0])
    assert harness.answers() == [JobAnswer("token", (), released=True)]


def test_an_answer_before_submit_has_returned_is_not_lost(harness: AdapterHarness) -> None:
    original = harness.adapter.submit_lookup

    def eager(keys: Any) -> JobId:
        job = original(keys)
        harness.adapter.finish(harness.adapter.waiting[0])
        harness.client.deliver()
        return job

    harness.adapter.submit_lookup = eager  # type: ignore[method-assign]
    harness.client.submit_lookup(KEYS, harness.inbox, "token")
    assert harness.answers() == [JobAnswer("token", (Outcome.MISSING,) * 3, released=True)]


def test_a_late_job_has_timed_out_and_its_release_is_reported_separately(harness: AdapterHarness) -> None:
    harness.client.submit_lookup(KEYS, harness.inbox, "token")
    assert harness.client.expire(harness.clock.monotonic() + 29) is not None
    harness.client.expire(harness.clock.monotonic() + 30)
    assert harness.answers() == [JobAnswer("token", (Outcome.TIMED_OUT,) * 3, released=False)]
    assert not harness.client.answers
    harness.adapter.finish(harness.adapter.waiting[0])
    assert harness.answers() == [JobReleased("token")]
    assert harness.client.answers


def test_what_a_late_lookup_pinned_is_unpinned(harness: AdapterHarness) -> None:
    harness.adapter.objects = {key.object_id: b"x" for key in KEYS[:2]}
    harness.client.submit_lookup(KEYS, harness.inbox, "token")
    harness.client.expire(harness.clock.monotonic() + 31)
    harness.adapter.finish(harness.adapter.waiting[0])
    harness.answers()
    assert not any(harness.adapter.pins.values())


def test_an_adapter_that_keeps_its_buffers_is_broken_until_it_releases_them(harness: AdapterHarness) -> None:
    harness.client.submit_lookup(KEYS, harness.inbox, "token")
    job = harness.adapter.waiting[0]
    harness.adapter.time_out(job)
    assert harness.answers() == [JobAnswer("token", (Outcome.TIMED_OUT,) * 3, released=False)]
    assert not harness.client.answers
    harness.adapter.release_buffers(job)
    assert harness.answers() == [JobReleased("token")]
    assert harness.client.answers


def test_a_job_that_slips_in_while_its_adapter_is_shut_is_answered(harness: AdapterHarness) -> None:
    """The completion thread no longer looks for its completions or its deadline."""

    def submit_as_it_is_shut(keys: Sequence[ObjectKey]) -> JobId:
        harness.client.abandon()
        harness.client.expire(0.0)
        harness.client.shut()
        return JobId(99)

    harness.adapter.submit_delete = submit_as_it_is_shut  # type: ignore[method-assign]
    outcomes: list[Sequence[Outcome]] = []
    harness.client.delete_soon(KEYS, outcomes.append)
    assert outcomes == [(Outcome.TIMED_OUT,) * 3]
    assert harness.client.jobs.unanswered == 0
