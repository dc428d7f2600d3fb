"""The thread that hears adapters out, and times their jobs out."""

from __future__ import annotations

import logging
import select
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from core.tests.controllers.adapter_harness import KEYS
from lmcache_core.contracts.clock import SystemClock
from lmcache_core.contracts.events import AdapterHealthChanged, Publisher
from lmcache_core.controllers.adapter_client import AdapterClient
from lmcache_core.controllers.adapter_jobs import CompletionThread, JobAnswer
from lmcache_core.jobs.queues import CompletionQueue, Inbox
from lmcache_core.model.results import Outcome
from lmcache_devkit.cue_adapter import CueAdapter
from lmcache_devkit.event_recorder import EventRecorder


@contextmanager
def listening(clients: Sequence[AdapterClient], clock: SystemClock, events: Publisher | None = None) -> Iterator[None]:
    """The thread runs meanwhile, and ends on request."""
    thread = CompletionThread(clients, clock, events)
    runner = threading.Thread(target=thread.run, daemon=True)
    runner.start()
    try:
        yield
    finally:
        thread.stop()
        runner.join(5)
    assert not runner.is_alive()


def test_the_thread_delivers_and_times_out_on_its_own() -> None:
    adapter, inbox, clock = CueAdapter(), Inbox[Any](), SystemClock()
    client = AdapterClient(0, "cue", adapter, adapter.capabilities, clock, 0.1)
    with listening([client], clock):
        client.submit_lookup(KEYS, inbox, "late")
        answers: list[Any] = []
        for _ in range(500):
            answers += inbox.drain()
            if answers:
                break
            threading.Event().wait(0.01)
        assert answers == [JobAnswer("late", (Outcome.TIMED_OUT,) * 3, released=False)]


def test_an_adapter_that_stops_answering_and_resumes_is_notified() -> None:
    adapter, inbox, clock, events = CueAdapter(), Inbox[Any](), SystemClock(), EventRecorder()
    client = AdapterClient(0, "cue", adapter, adapter.capabilities, clock, 0.05)

    def health_events(count: int) -> list[AdapterHealthChanged]:
        deadline = time.monotonic() + 10
        while len(events.of(AdapterHealthChanged)) < count and time.monotonic() < deadline:
            time.sleep(0.005)
        return events.of(AdapterHealthChanged)

    with listening([client], clock, events):
        client.submit_lookup(KEYS, inbox, "late")
        assert health_events(1) == [AdapterHealthChanged("cue", False)]
        adapter.finish(adapter.waiting[0])
        assert health_events(2) == [AdapterHealthChanged("cue", False), AdapterHealthChanged("cue", True)]


def test_a_deadline_is_kept_while_earlier_jobs_keep_their_buffers() -> None:
    adapter, inbox, clock = CueAdapter(), Inbox[Any](), SystemClock()
    client = AdapterClient(0, "cue", adapter, adapter.capabilities, clock, 0.1)
    poll = select.poll()
    poll.register(inbox, select.POLLIN)
    with listening([client], clock):
        for token in ("first", "second"):  # the first one never releases its buffers
            client.submit_lookup(KEYS, inbox, token)
            poll.poll(5000)
            assert inbox.drain() == [JobAnswer(token, (Outcome.TIMED_OUT,) * 3, released=False)]
            time.sleep(0.02)  # the thread is asleep by now


def test_an_adapter_that_closes_its_descriptor_is_heard_of_once_and_keeps_no_other_one_waiting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    adapters, inbox, clock = [CueAdapter(), CueAdapter()], Inbox[Any](), SystemClock()
    for adapter in adapters:
        adapter._completions = CompletionQueue()  # type: ignore[assignment]
    clients = [
        AdapterClient(number, f"cue-{number}", adapter, adapter.capabilities, clock, 0.2)
        for number, adapter in enumerate(adapters)
    ]
    poll = select.poll()
    poll.register(inbox, select.POLLIN)

    def hear() -> None:
        clients[1].submit_lookup(KEYS, inbox, "it listens")
        adapters[1].finish(adapters[1].waiting[0])
        poll.poll(5000)
        assert len(inbox.drain()) == 1
        adapters[0].close(0)
        clients[0].submit_lookup(KEYS, inbox, "lost")
        poll.poll(5000)
        assert inbox.drain() == [JobAnswer("lost", (Outcome.TIMED_OUT,) * 3, released=False)]
        clients[1].submit_lookup(KEYS, inbox, "heard")
        adapters[1].finish(adapters[1].waiting[0])
        poll.poll(5000)
        assert inbox.drain() == [JobAnswer("heard", (Outcome.MISSING,) * 3, released=True)]

    with caplog.at_level(logging.ERROR):
        for _ in range(2):  # the thread is started again
            with listening(clients, clock):
                hear()
    (record,) = caplog.records
    assert "adapter=cue-0" in record.getMessage()
    adapters[1].close(0)
