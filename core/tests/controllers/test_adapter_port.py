"""An adapter is somebody else's code: late, early, wrong or raising, its jobs are answered exactly once."""

from __future__ import annotations

import logging
import select
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmcache_core.contracts.clock import SystemClock
from lmcache_core.contracts.completion import BuffersReleased, JobDone, JobId
from lmcache_core.contracts.events import AdapterHealthChanged
from lmcache_core.contracts.l2_adapter import StoreItem
from lmcache_core.controllers.adapter_port import AdapterPort
from lmcache_core.controllers.completion_thread import CompletionThread
from lmcache_core.controllers.job_answer import JobAnswer, JobReleased
from lmcache_core.jobs.completion_queue import CompletionQueue
from lmcache_core.jobs.inbox import Inbox
from lmcache_core.model.keys import HashChain, KeySpace, ObjectKey
from lmcache_core.model.results import KeyPage, Outcome
from lmcache_core.testing.cue_adapter import CueAdapter
from lmcache_core.testing.event_recorder import EventRecorder
from lmcache_core.testing.fake_clock import FakeClock
from lmcache_core.testing.lent_memory import LentMemory

SPACE = KeySpace("m", 1, 0, "", 16, HashChain.BLAKE3, bytes(16))
KEYS = [ObjectKey(SPACE, bytes([number]) * 32) for number in range(3)]


class Desk:
    def __init__(self) -> None:
        self.clock, self.adapter, self.inbox = FakeClock(), CueAdapter(), Inbox[Any]()
        self.port = AdapterPort(0, "cue", self.adapter, self.adapter.capabilities, self.clock, 30.0)

    def answers(self) -> list[Any]:
        self.port.deliver()
        return self.inbox.drain()


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.adapter.close(0)
    desk.inbox.close()


def test_an_answer_comes_once_with_its_token(desk: Desk) -> None:
    desk.port.submit_lookup(KEYS, desk.inbox, "token")
    desk.adapter.finish(desk.adapter.waiting[0])
    assert desk.answers() == [JobAnswer("token", (Outcome.MISSING,) * 3, released=True)]
    assert desk.answers() == []
    assert desk.port.expire(10**9) is None


def test_a_batch_of_nothing_is_answered(desk: Desk) -> None:
    desk.port.submit_lookup([], desk.inbox, "token")
    desk.adapter.finish(desk.adapter.waiting[0])
    assert desk.answers() == [JobAnswer("token", (), released=True)]


def test_an_answer_before_submit_has_returned_is_not_lost(desk: Desk) -> None:
    original = desk.adapter.submit_lookup

    def eager(keys: Any) -> JobId:
        job = original(keys)
        desk.adapter.finish(desk.adapter.waiting[0])
        desk.port.deliver()
        return job

    desk.adapter.submit_lookup = eager  # type: ignore[method-assign]
    desk.port.submit_lookup(KEYS, desk.inbox, "token")
    assert desk.answers() == [JobAnswer("token", (Outcome.MISSING,) * 3, released=True)]


def test_a_late_job_has_timed_out_and_its_release_is_told_apart(desk: Desk) -> None:
    desk.port.submit_lookup(KEYS, desk.inbox, "token")
    assert desk.port.expire(desk.clock.monotonic() + 29) is not None
    desk.port.expire(desk.clock.monotonic() + 30)
    assert desk.answers() == [JobAnswer("token", (Outcome.TIMED_OUT,) * 3, released=False)]
    assert not desk.port.healthy
    desk.adapter.finish(desk.adapter.waiting[0])
    assert desk.answers() == [JobReleased("token")]
    assert desk.port.healthy


def test_what_a_late_lookup_pinned_is_unpinned(desk: Desk) -> None:
    desk.adapter.objects = {key.object_id: b"x" for key in KEYS[:2]}
    desk.port.submit_lookup(KEYS, desk.inbox, "token")
    desk.port.expire(desk.clock.monotonic() + 31)
    desk.adapter.finish(desk.adapter.waiting[0])
    desk.answers()
    assert not any(desk.adapter.pins.values())


def test_an_adapter_that_keeps_its_buffers_is_broken_until_it_lets_go(desk: Desk) -> None:
    desk.port.submit_lookup(KEYS, desk.inbox, "token")
    job = desk.adapter.waiting[0]
    desk.adapter.time_out(job)
    assert desk.answers() == [JobAnswer("token", (Outcome.TIMED_OUT,) * 3, released=False)]
    assert not desk.port.healthy
    desk.adapter.let_go(job)
    assert desk.answers() == [JobReleased("token")]
    assert desk.port.healthy


def test_the_wrong_number_of_outcomes_is_a_failure(desk: Desk) -> None:
    desk.port.submit_lookup(KEYS, desk.inbox, "token")
    desk.adapter._completions.post(JobDone(desk.adapter.waiting[0].job, (Outcome.DONE,)))
    assert desk.answers() == [JobAnswer("token", (Outcome.FAILED,) * 3, released=True)]
    assert desk.port.faults == 1


def test_what_an_adapter_raises_is_a_failed_job(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("no")

    for verb in ("submit_delete", "unpin", "usage"):
        monkeypatch.setattr(desk.adapter, verb, broken)
    desk.port.submit_delete(KEYS, desk.inbox, "token")
    assert desk.answers() == [JobAnswer("token", (Outcome.FAILED,) * 3, released=True)]
    deletes = desk.port.tally.account().verbs["delete"]
    assert (deletes.jobs, deletes.answered, deletes.outcomes) == (1, 1, {"failed": 3})
    desk.port.unpin(KEYS)
    assert desk.port.status()["usage"] is None
    assert desk.port.faults == 3


def test_completions_of_jobs_that_never_were_are_ignored(desk: Desk) -> None:
    for number in range(5000):
        desk.adapter._completions.post(JobDone(JobId(10_000 + number), (Outcome.DONE,)))
    assert desk.answers() == []


def test_the_thread_delivers_and_times_out_on_its_own() -> None:
    adapter, inbox, clock = CueAdapter(), Inbox[Any](), SystemClock()
    port = AdapterPort(0, "cue", adapter, adapter.capabilities, clock, 0.1)
    thread = CompletionThread([port], clock)
    runner = threading.Thread(target=thread.run, daemon=True)
    runner.start()
    port.submit_lookup(KEYS, inbox, "late")
    answers: list[Any] = []
    for _ in range(500):
        answers += inbox.drain()
        if answers:
            break
        threading.Event().wait(0.01)
    assert answers == [JobAnswer("late", (Outcome.TIMED_OUT,) * 3, released=False)]
    thread.stop()
    runner.join(5)
    assert not runner.is_alive()


def test_an_adapter_that_does_not_answer_and_answers_again_is_told_of() -> None:
    adapter, inbox, clock, events = CueAdapter(), Inbox[Any](), SystemClock(), EventRecorder()
    port = AdapterPort(0, "cue", adapter, adapter.capabilities, clock, 0.05)
    thread = CompletionThread([port], clock, events)
    runner = threading.Thread(target=thread.run, daemon=True)
    runner.start()

    def told(count: int) -> list[AdapterHealthChanged]:
        deadline = time.monotonic() + 10
        while len(events.of(AdapterHealthChanged)) < count and time.monotonic() < deadline:
            time.sleep(0.005)
        return events.of(AdapterHealthChanged)

    port.submit_lookup(KEYS, inbox, "late")
    assert told(1) == [AdapterHealthChanged("cue", False)]
    adapter.finish(adapter.waiting[0])
    assert told(2) == [AdapterHealthChanged("cue", False), AdapterHealthChanged("cue", True)]
    thread.stop()
    runner.join(5)
    assert not runner.is_alive()


def test_a_deadline_is_kept_while_earlier_jobs_keep_their_buffers() -> None:
    adapter, inbox, clock = CueAdapter(), Inbox[Any](), SystemClock()
    port = AdapterPort(0, "cue", adapter, adapter.capabilities, clock, 0.1)
    thread = CompletionThread([port], clock)
    runner = threading.Thread(target=thread.run, daemon=True)
    runner.start()
    poll = select.poll()
    poll.register(inbox, select.POLLIN)
    for token in ("first", "second"):  # the first one never lets go
        port.submit_lookup(KEYS, inbox, token)
        poll.poll(5000)
        assert inbox.drain() == [JobAnswer(token, (Outcome.TIMED_OUT,) * 3, released=False)]
        time.sleep(0.02)  # the thread is asleep by now
    thread.stop()
    runner.join(5)
    assert not runner.is_alive()


def test_an_adapter_that_closes_its_descriptor_is_heard_of_once_and_keeps_no_other_one_waiting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    adapters, inbox, clock = [CueAdapter(), CueAdapter()], Inbox[Any](), SystemClock()
    for adapter in adapters:
        adapter._completions = CompletionQueue()  # type: ignore[assignment]
    ports = [
        AdapterPort(number, f"cue-{number}", adapter, adapter.capabilities, clock, 0.2)
        for number, adapter in enumerate(adapters)
    ]
    poll = select.poll()
    poll.register(inbox, select.POLLIN)

    def listen() -> None:
        thread = CompletionThread(ports, clock)
        runner = threading.Thread(target=thread.run, daemon=True)
        runner.start()
        ports[1].submit_lookup(KEYS, inbox, "it listens")
        adapters[1].finish(adapters[1].waiting[0])
        poll.poll(5000)
        assert len(inbox.drain()) == 1
        adapters[0].close(0)
        ports[0].submit_lookup(KEYS, inbox, "lost")
        poll.poll(5000)
        assert inbox.drain() == [JobAnswer("lost", (Outcome.TIMED_OUT,) * 3, released=False)]
        ports[1].submit_lookup(KEYS, inbox, "heard")
        adapters[1].finish(adapters[1].waiting[0])
        poll.poll(5000)
        assert inbox.drain() == [JobAnswer("heard", (Outcome.MISSING,) * 3, released=True)]
        thread.stop()
        runner.join(5)
        assert not runner.is_alive()

    with caplog.at_level(logging.ERROR):
        listen()
        listen()  # the thread was started again
    (record,) = caplog.records
    assert "adapter=cue-0" in record.getMessage()
    adapters[1].close(0)


def test_a_release_before_the_answer_is_a_failure(desk: Desk) -> None:
    desk.port.submit_lookup(KEYS, desk.inbox, "token")
    job = desk.adapter.waiting[0]
    desk.adapter._completions.post(BuffersReleased(job.job))
    assert desk.answers() == [JobAnswer("token", (Outcome.FAILED,) * 3, released=True)]
    assert (desk.port.healthy, desk.port.faults) == (True, 1)
    desk.adapter.finish(job)
    assert desk.answers() == []
    assert desk.port.healthy


def test_what_trips_while_it_is_delivered_fails_alone_and_loses_nothing_behind_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for token in ("first", "second"):
        desk.port.submit_lookup(KEYS, desk.inbox, token)
    for job in list(desk.adapter.waiting):
        desk.adapter.finish(job)

    def trip(*_: Any) -> None:
        raise RuntimeError("injected")

    with monkeypatch.context() as patch:
        patch.setattr(desk.port, "_complete", trip)
        with pytest.raises(RuntimeError):
            desk.port.deliver()
    assert desk.answers() == [
        JobAnswer("first", (Outcome.FAILED,) * 3, released=True),
        JobAnswer("second", (Outcome.MISSING,) * 3, released=True),
    ]
    assert desk.port.healthy
    assert desk.port.expire(10**9) is None, "nothing is pending"


@pytest.mark.parametrize("late", [False, True])
def test_a_release_that_trips_still_frees_the_adapter(desk: Desk, monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    def trip(*_: Any) -> None:
        raise RuntimeError("injected")

    desk.port.submit_lookup(KEYS, desk.inbox, "token")
    job = desk.adapter.waiting[0]
    if late:
        desk.port.expire(desk.clock.monotonic() + 31)
        desk.adapter.finish(job)
    else:
        desk.adapter.time_out(job)
        desk.answers()
        desk.adapter.let_go(job)
    desk.inbox.drain()
    with monkeypatch.context() as patch:
        patch.setattr(desk.port, "_complete", trip)
        with pytest.raises(RuntimeError):
            desk.port.deliver()
    assert desk.answers() == [JobReleased("token")]
    assert desk.port.healthy


@pytest.mark.parametrize("outcomes", [None, 3, "abc", (True, False, True), [Outcome.DONE, Outcome.DONE, "done"]])
def test_outcomes_that_are_none_are_a_failure(desk: Desk, outcomes: Any) -> None:
    desk.port.submit_lookup(KEYS, desk.inbox, "token")
    desk.adapter._completions.post(JobDone(desk.adapter.waiting[0].job, outcomes))
    assert desk.answers() == [JobAnswer("token", (Outcome.FAILED,) * 3, released=True)]
    assert desk.port.faults == 1


def test_what_is_no_completion_is_counted_and_what_follows_it_delivered(desk: Desk) -> None:
    desk.port.submit_lookup(KEYS, desk.inbox, "token")
    desk.adapter._completions.post("nonsense")  # type: ignore[arg-type]
    desk.adapter.finish(desk.adapter.waiting[0])
    assert desk.answers() == [JobAnswer("token", (Outcome.MISSING,) * 3, released=True)]
    assert desk.port.faults == 1


acts = st.tuples(st.sampled_from(("submit", "done", "kept", "release", "time")), st.integers(0, 3))


@settings(max_examples=300, deadline=None)
@given(st.lists(acts, max_size=24))
def test_whatever_an_adapter_says_each_job_is_answered_once_and_released_once(said: list[tuple[str, int]]) -> None:
    desk, heard, jobs = Desk(), list[Any](), list[JobId]()
    post = desk.adapter._completions.post
    for what, number in [*said, *(("done", number) for number in range(24))]:
        job = jobs[number] if number < len(jobs) else None
        if what == "submit":
            desk.port.submit_lookup(KEYS, desk.inbox, len(jobs))
            jobs.append(desk.adapter.waiting[-1].job)
        elif what == "time":
            desk.clock.advance(31)
            desk.port.expire(desk.clock.monotonic())
        elif job is not None:
            missing = (Outcome.MISSING,) * len(KEYS)
            post(BuffersReleased(job) if what == "release" else JobDone(job, missing, released=what == "done"))
        heard += desk.answers()
    for number in range(len(jobs)):
        mine = [answer for answer in heard if answer.token == number]
        kept = isinstance(mine[0], JobAnswer) and not mine[0].released
        assert [type(answer) for answer in mine] == ([JobAnswer, JobReleased] if kept else [JobAnswer])
    assert desk.port.healthy
    assert desk.port.expire(10**9) is None
    assert desk.port.status()["jobs_in_flight"] == 0
    desk.adapter.close(0)
    desk.inbox.close()


class Diary:
    def __init__(self) -> None:
        self.notes: list[Any] = []

    def stored(self, objects: Any) -> None:
        self.notes.append(("stored", list(objects)))

    def may_have_stored(self, objects: Any) -> None:
        self.notes.append(("may have stored", list(objects)))

    def hit(self, keys: Any) -> None:
        self.notes.append(("hit", list(keys)))

    def deleting(self, keys: Any) -> None:
        self.notes.append(("deleting", list(keys)))

    def deleted(self, keys: Any, gone: Any) -> None:
        self.notes.append(("deleted", list(keys), list(gone)))


def test_a_watcher_is_told_what_the_adapter_has(desk: Desk) -> None:
    memory, diary = LentMemory(1 << 16), Diary()
    desk.port.watch(diary)
    items = [StoreItem(key, memory.lend(4096)) for key in KEYS[:2]]
    desk.port.submit_store(items, desk.inbox, "store")
    assert desk.port.in_use() == set(KEYS[:2])
    desk.port.submit_store(items, desk.inbox, "fails")
    desk.adapter.finish(desk.adapter.waiting[0])
    desk.adapter.fail(desk.adapter.waiting[0])
    desk.answers()
    desk.port.submit_lookup(KEYS, desk.inbox, "lookup")
    desk.port.submit_delete(KEYS[:1], desk.inbox, "delete")
    assert desk.port.in_use() == set()
    for job in list(desk.adapter.waiting):
        desk.adapter.finish(job)
    answers = desk.answers()
    assert diary.notes == [("stored", [(KEYS[0], 4096), (KEYS[1], 4096)]), ("hit", KEYS[:2])]
    assert answers[-1] == JobAnswer("delete", (Outcome.DONE,), released=True)


def test_a_store_that_arrives_after_its_deadline_is_told_too(desk: Desk) -> None:
    memory, diary = LentMemory(1 << 16), Diary()
    desk.port.watch(diary)
    desk.port.submit_store([StoreItem(KEYS[0], memory.lend(4096))], desk.inbox, "late")
    desk.port.expire(desk.clock.monotonic() + 31)
    desk.adapter.finish(desk.adapter.waiting[0])
    desk.answers()
    assert diary.notes == [("stored", [(KEYS[0], 4096)])]


def test_what_an_adapter_gave_up_and_may_have_kept_is_told(desk: Desk) -> None:
    memory, diary = LentMemory(1 << 16), Diary()
    desk.port.watch(diary)
    desk.port.submit_store([StoreItem(KEYS[0], memory.lend(4096))], desk.inbox, "slow")
    desk.port.submit_store([StoreItem(KEYS[1], memory.lend(4096))], desk.inbox, "fails")
    slow, failing = desk.adapter.waiting
    desk.adapter.time_out(slow)
    desk.adapter.fail(failing)
    desk.answers()
    assert diary.notes == [("may have stored", [(KEYS[0], 4096)])]
    assert desk.port.in_use() == {KEYS[0]}, "it is being stored until its buffer is released"
    desk.adapter.let_go(slow)
    desk.answers()
    assert desk.port.in_use() == set()


@pytest.mark.parametrize("answer", [None, "page", OSError("no")])
def test_a_listing_that_is_none_is_said_so(desk: Desk, monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    def list_keys(cursor: str | None, limit: int) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(desk.adapter, "list_keys", list_keys)
    assert desk.port.list_keys(None, 10) is None


def test_an_adapter_is_not_closed_while_it_lists_its_keys() -> None:
    began, goes_on, steps = threading.Event(), threading.Event(), list[str]()

    class Lister(CueAdapter):
        def list_keys(self, cursor: str | None, limit: int) -> KeyPage:
            began.set()
            assert goes_on.wait(10)
            steps.append("listed")
            return KeyPage((), None)

        def close(self, deadline_seconds: float) -> None:
            steps.append("closed")
            super().close(deadline_seconds)

    adapter = Lister()
    port = AdapterPort(0, "lister", adapter, adapter.capabilities, FakeClock(), 30.0)
    lister = threading.Thread(target=port.list_keys, args=(None, 5))
    lister.start()
    assert began.wait(10)
    closer = threading.Thread(target=port.close, args=(10.0,))
    closer.start()
    while not port._closing:
        time.sleep(0.001)
    assert port.list_keys(None, 5) is None
    goes_on.set()
    for thread in (lister, closer):
        thread.join(10)
    assert steps == ["listed", "closed"]


def test_a_listing_that_does_not_end_is_not_waited_for_longer(caplog: pytest.LogCaptureFixture) -> None:
    goes_on = threading.Event()

    class Lister(CueAdapter):
        def list_keys(self, cursor: str | None, limit: int) -> KeyPage:
            goes_on.wait(10)
            return KeyPage((), None)

    adapter = Lister()
    port = AdapterPort(0, "lister", adapter, adapter.capabilities, FakeClock(), 30.0)
    lister = threading.Thread(target=port.list_keys, args=(None, 5))
    lister.start()
    while not port._listings:
        time.sleep(0.001)
    port.close(0.01)
    assert "l2 adapter is closed while it lists its keys adapter=lister" in caplog.text
    goes_on.set()
    lister.join(10)


def test_a_job_that_slips_in_while_its_adapter_is_shut_is_answered(desk: Desk) -> None:
    """Nobody looks for its completions or its deadline any more."""

    def submit_as_it_is_shut(keys: Sequence[ObjectKey]) -> JobId:
        desk.port.abandon()
        desk.port.expire(0.0)
        desk.port.shut()
        return JobId(99)

    desk.adapter.submit_delete = submit_as_it_is_shut  # type: ignore[method-assign]
    desk.port.submit_delete(KEYS, desk.inbox, "late")
    assert desk.inbox.drain() == [JobAnswer("late", (Outcome.TIMED_OUT,) * 3, released=False)]
    assert desk.port.unanswered == 0
