"""A subscriber that blocks, raises, burns or keeps harms itself alone."""

from __future__ import annotations

import threading
import time

import pytest

from core.tests.events.listeners import WAIT_SECONDS, Listener, bus_of, delivering, expired, wait_for
from lmcache_core.contracts.counts import SubscriberState
from lmcache_core.contracts.events import Event, LeasesExpired
from lmcache_core.events.subscriber_calls import AskedSubscriber, SubscriberCalls
from lmcache_devkit.fake_server_view import FakeServerView

EVENTS = 300


def test_one_that_blocks_for_ever_loses_its_own_events_alone(caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()

    def hang(event: Event) -> None:
        release.wait()

    stuck = Listener(LeasesExpired, then=hang)
    good = Listener(LeasesExpired)
    bus = bus_of({"stuck": stuck, "good": good}, EVENTS, timeout_seconds=0.05)
    with delivering(bus) as threads:
        for number in range(EVENTS):
            bus.publish(expired(number))
        wait_for(lambda: len(good.heard) == EVENTS)
        wait_for(lambda: bus.counters().subscribers["stuck"].state is SubscriberState.STUCK)
        for number in range(EVENTS):
            bus.publish(expired(number))
        wait_for(lambda: len(good.heard) == 2 * EVENTS)
        queues = bus.counters().subscribers
        assert (queues["stuck"].waiting, queues["stuck"].dropped) == (EVENTS + 1, {"LeasesExpired": EVENTS - 1})
        assert queues["stuck"].oldest_age_seconds > 0
        assert (queues["good"].dropped, queues["good"].delivered) == ({}, 2 * EVENTS)

        started = time.monotonic()
        assert not bus.close(0.05)
        assert time.monotonic() - started < WAIT_SECONDS / 2
        assert "left behind names=stuck" in caplog.text
        assert (stuck.closed, good.closed) == (0, 1)
        threads[1].join(WAIT_SECONDS)
        assert [thread.is_alive() for thread in threads] == [True, False]
        assert bus.counters().subscribers["stuck"].dropped == {"LeasesExpired": 2 * EVENTS - 1}
        release.set()
    assert stuck.closed == 0  # it was left behind
    assert bus.counters().subscribers["stuck"].delivered == 1


def test_one_that_never_comes_back_from_begin_is_stuck_and_does_not_hold_up_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lmcache_core.events.subscriber_calls.BEGIN_SECONDS", 0.1)
    release = threading.Event()

    class Begins(Listener):
        def begin(self, server: object) -> None:
            release.wait()

    good = Listener(LeasesExpired)
    bus = bus_of({"stuck": Begins(LeasesExpired), "good": good}, EVENTS, timeout_seconds=0.05)
    bus.begin(FakeServerView())
    with delivering(bus):
        bus.publish(expired(1))
        wait_for(lambda: len(good.heard) == 1)
        wait_for(lambda: bus.counters().subscribers["stuck"].state is SubscriberState.STUCK)
        release.set()


def test_one_that_came_back_is_not_stuck_while_its_thread_rests() -> None:
    seconds = [0.0]
    listener = Listener(LeasesExpired)
    calls = SubscriberCalls("one", AskedSubscriber(listener, listener.subscriptions()), 1.0, lambda: seconds[0])
    calls.hand_over(expired(1))
    seconds[0] = 100.0
    assert not calls.is_stuck


def test_one_that_raises_what_is_not_an_exception_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def leave(event: Event) -> None:
        raise SystemExit(3)

    bad = Listener(LeasesExpired, then=leave)
    bus = bus_of({"bad": bad}, EVENTS)
    with delivering(bus):
        for number in range(3):
            bus.publish(expired(number))
    status = bus.counters().subscribers["bad"]
    assert (len(bad.heard), status.failed, status.delivered) == (3, 3, 3)
    assert status.state is SubscriberState.FAILING
    assert status.last_error == "LeasesExpired: SystemExit: 3"


def test_one_whose_exception_cannot_be_shown_is_a_failure_like_any_other() -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    def fail(event: Event) -> None:
        raise MuteError

    bad = Listener(LeasesExpired, then=fail)
    bus = bus_of({"bad": bad}, EVENTS)
    with delivering(bus):
        for number in range(3):
            bus.publish(expired(number))
        wait_for(lambda: len(bad.heard) == 3)
    assert bus.counters().subscribers["bad"].last_error == "LeasesExpired: MuteError: (its message is not available)"


def test_what_it_computed_to_begin_does_not_delay_its_events() -> None:
    """A second of CPU, such as that of an import, would be made up for in a hundred."""

    class Imports(Listener):
        def begin(self, server: object) -> None:
            end = time.thread_time() + 1.0
            while time.thread_time() < end:
                pass

    slow = Imports(LeasesExpired)
    bus = bus_of({"slow": slow}, EVENTS, cpu_ratio=0.01)
    bus.begin(FakeServerView())
    with delivering(bus):
        for number in range(EVENTS):
            bus.publish(expired(number))
        wait_for(lambda: len(slow.heard) == EVENTS)


def test_one_that_burns_is_held_to_its_share_and_the_others_hear_everything() -> None:
    """Each event costs it 5 ms of CPU; with a hundredth of a core it gets one in half a second."""

    def burn(event: Event) -> None:
        end = time.thread_time() + 0.005
        while time.thread_time() < end:
            pass

    burning, good = Listener(LeasesExpired, then=burn), Listener(LeasesExpired)
    bus = bus_of({"burning": burning, "good": good}, EVENTS // 2, cpu_ratio=0.01)
    started, cpu = time.monotonic(), time.process_time()
    with delivering(bus):
        for number in range(EVENTS):
            bus.publish(expired(number))
            time.sleep(0.002)
        wait_for(lambda: len(good.heard) == EVENTS)
        status = bus.counters().subscribers["burning"]
        seconds = time.monotonic() - started
        assert status.delivered * 0.005 < 0.01 * (seconds + 0.2) + 0.01
        assert status.cpu_seconds <= time.process_time() - cpu
        assert status.state is SubscriberState.BEHIND
        assert sum(status.dropped.values()) >= EVENTS // 2 - status.delivered - 1
    assert len(burning.heard) == bus.counters().subscribers["burning"].delivered


def test_publishers_do_not_wait_for_a_full_queue() -> None:
    """A hundred thousand events for one that has not come back from its first: each is an append and a drop."""
    release, inside = threading.Event(), threading.Event()

    def hang(event: Event) -> None:
        inside.set()
        release.wait()

    bus = bus_of({"stuck": Listener(LeasesExpired, then=hang)}, 10)
    with delivering(bus):
        bus.publish(expired(0))
        assert inside.wait(WAIT_SECONDS)
        for number in range(100_000):
            bus.publish(expired(number))
        status = bus.counters().subscribers["stuck"]
        assert status.waiting + sum(status.dropped.values()) == 100_001
        release.set()


def test_a_thread_that_went_to_sleep_is_woken_by_the_first_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmcache_core.events.subscriber_queue.IDLE_SECONDS", 0.0)
    monkeypatch.setattr("lmcache_core.events.subscriber_queue.GATHER_SECONDS", 0.01)
    listener = Listener(LeasesExpired)
    bus = bus_of({"one": listener}, 100)
    with delivering(bus):
        for number in range(20):
            wait_for(lambda: bus.queue_of("one").limit == 0)
            bus.publish(expired(number))
            wait_for(lambda number=number: len(listener.heard) == number + 1)  # type: ignore[misc]


def test_a_queue_that_fills_up_is_delivered_before_the_batch_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmcache_core.events.subscriber_queue.GATHER_SECONDS", 10 * WAIT_SECONDS)
    listener = Listener(LeasesExpired)
    bus = bus_of({"one": listener}, 100)
    with delivering(bus):
        wait_for(lambda: bus.queue_of("one").limit == 50)
        for number in range(51):
            bus.publish(expired(number))
        wait_for(lambda: len(listener.heard) == 51)


def test_what_was_gathered_does_not_wait_for_the_next_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """A subscriber that gets no events is called all the same, now and then."""
    monkeypatch.setattr("lmcache_core.events.subscriber_queue.IDLE_SECONDS", 0.0)
    monkeypatch.setattr("lmcache_core.events.subscriber_queue.QUIET_SECONDS", 0.02)
    calls: list[int] = []

    class Gathers(Listener):
        def batch_done(self) -> None:
            calls.append(len(self.heard))

    bus = bus_of({"one": Gathers(LeasesExpired)}, EVENTS)
    with delivering(bus):
        bus.publish(expired(1))
        wait_for(lambda: calls.count(1) > 3)
        bus.publish(expired(2))
        wait_for(lambda: calls.count(2) > 3)


def test_an_event_that_comes_while_the_thread_goes_to_sleep_is_not_left_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its publisher has read the limit when the thread was not asleep yet, so that no publisher wakes it."""
    monkeypatch.setattr("lmcache_core.events.subscriber_queue.IDLE_SECONDS", 0.0)
    listener = Listener(LeasesExpired)
    bus = bus_of({"one": listener}, 100)
    queue, published = bus.queue_of("one"), list[int]()
    set_limit = queue._set_limit

    def publish_too_early(limit: int) -> None:
        if limit == 0 and not published:
            published.append(1)
            queue.events.append(expired(1))
        set_limit(limit)

    monkeypatch.setattr(queue, "_set_limit", publish_too_early)
    with delivering(bus):
        wait_for(lambda: listener.heard == [expired(1)])
