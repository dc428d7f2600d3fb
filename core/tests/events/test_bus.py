"""The event bus: order, isolation, bounds, and an end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lmcache_core.contracts.events import ChunksEvicted, Event, LeasesExpired, StoresDropped
from lmcache_core.contracts.subscriber import Subscriber, Subscriptions
from lmcache_core.events.bus import EventBus

WAIT_SECONDS = 10.0


class Listener(Subscriber):
    def __init__(self, *kinds: type[Event], then: Callable[[Event], None] = lambda event: None) -> None:
        self.kinds, self.then = kinds, then
        self.heard: list[Event] = []
        self.closed = 0

    def subscriptions(self) -> Subscriptions:
        return dict.fromkeys(self.kinds, self._hear)

    def close(self) -> None:
        self.closed += 1

    def _hear(self, event: Event) -> None:
        self.heard.append(event)
        self.then(event)


def expired(number: int) -> LeasesExpired:
    return LeasesExpired(number, 0)


@contextmanager
def delivering(bus: EventBus) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=bus.run, daemon=True)
    thread.start()
    yield thread
    bus.close(WAIT_SECONDS)
    thread.join(WAIT_SECONDS)
    assert not thread.is_alive()


def test_events_come_in_order_to_those_who_asked_for_them() -> None:
    one, other = Listener(LeasesExpired), Listener(StoresDropped, LeasesExpired)
    bus = EventBus({"one": one, "other": other}, 100)
    events = [expired(0), StoresDropped("fs", 1, 1, "full"), expired(1), ChunksEvicted(1, 1, 0.5)]
    with delivering(bus):
        for event in events:
            bus.publish(event)
    assert one.heard == [events[0], events[2]]
    assert other.heard == events[:3]
    assert bus.counters().delivered == 3


def test_events_are_delivered_while_the_bus_runs() -> None:
    heard = threading.Event()
    bus = EventBus({"one": Listener(LeasesExpired, then=lambda event: heard.set())}, 100)
    with delivering(bus):
        for _ in range(3):
            bus.publish(expired(0))
            assert heard.wait(WAIT_SECONDS)
            heard.clear()


def test_a_subscription_to_the_root_is_one_to_everything() -> None:
    all_of_them = Listener(Event)
    bus = EventBus({"all": all_of_them}, 100)
    assert bus.wants(ChunksEvicted)
    bus.publish(expired(1))
    bus.publish(StoresDropped("fs", 1, 1, "full"))
    assert bus.close(WAIT_SECONDS)
    assert len(all_of_them.heard) == 2


def test_what_nobody_wants_is_not_kept() -> None:
    bus = EventBus({"one": Listener(StoresDropped)}, 1)
    assert bus.wants(StoresDropped)
    assert not bus.wants(LeasesExpired)
    for number in range(5):
        bus.publish(expired(number))
    counters = bus.counters()
    assert (counters.waiting, counters.dropped) == (0, {})


def test_a_full_queue_drops_the_newest_and_counts_by_type() -> None:
    listener = Listener(LeasesExpired, StoresDropped)
    bus = EventBus({"one": listener}, 3)
    for number in range(5):
        bus.publish(expired(number))
    bus.publish(StoresDropped("fs", 1, 1, "full"))
    assert bus.counters().waiting == 3
    assert bus.counters().dropped == {"LeasesExpired": 2, "StoresDropped": 1}
    assert bus.close(WAIT_SECONDS)
    assert listener.heard == [expired(0), expired(1), expired(2)]


def test_one_that_fails_harms_nobody_and_is_named(caplog: pytest.LogCaptureFixture) -> None:
    def fail(event: Event) -> None:
        raise ValueError("cannot count")

    bad, good = Listener(LeasesExpired, then=fail), Listener(LeasesExpired)
    bus = EventBus({"bad": bad, "good": good}, 5000)
    with caplog.at_level(logging.ERROR), delivering(bus):
        for number in range(1500):
            bus.publish(expired(number))
    assert len(good.heard) == 1500
    assert bus.counters().failed == {"bad": 1500}
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [f"subscriber failed subscriber=bad event=LeasesExpired failures={count}" for count in (1, 1001)]
    assert "cannot count" in caplog.text


@pytest.mark.parametrize("subscriptions", [{int: print}, {LeasesExpired: 3}, {"LeasesExpired": print}, None])
def test_one_that_subscribes_wrongly_is_left_out(subscriptions: Any, caplog: pytest.LogCaptureFixture) -> None:
    class Wrong(Subscriber):
        def subscriptions(self) -> Subscriptions:
            found: Subscriptions = subscriptions
            return found

    good = Listener(LeasesExpired)
    bus = EventBus({"wrong": Wrong(), "good": good}, 10)
    bus.publish(expired(1))
    assert bus.close(WAIT_SECONDS)
    assert good.heard == [expired(1)]
    assert bus.counters().failed == {"wrong": 1}
    assert "subscriber=wrong event=subscriptions" in caplog.text


def test_a_close_delivers_what_waits_closes_everybody_once_and_ends_the_thread() -> None:
    def fail() -> None:
        raise OSError("disk full")

    bad, good = Listener(LeasesExpired), Listener(LeasesExpired)
    bad.close = fail  # type: ignore[method-assign]
    bus = EventBus({"bad": bad, "good": good}, 10)
    bus.publish(expired(1))
    with delivering(bus) as thread:
        assert bus.close(WAIT_SECONDS)
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()
        assert bus.close(WAIT_SECONDS)
    assert good.heard == [expired(1)]
    assert good.closed == 1
    assert bus.counters().failed == {"bad": 1}
    bus.publish(expired(2))
    assert bus.counters().dropped == {"LeasesExpired": 1}


def test_a_close_does_not_wait_for_one_that_hangs() -> None:
    inside, release = threading.Event(), threading.Event()

    def hang(event: Event) -> None:
        inside.set()
        assert release.wait(WAIT_SECONDS)

    bus = EventBus({"slow": Listener(LeasesExpired, then=hang)}, 10)
    thread = threading.Thread(target=bus.run, daemon=True)
    thread.start()
    for number in range(4):
        bus.publish(expired(number))
    assert inside.wait(WAIT_SECONDS)
    assert not bus.close(0.05)
    assert bus.counters().dropped == {"LeasesExpired": 3}
    release.set()
    thread.join(WAIT_SECONDS)
    assert not thread.is_alive()


def test_publishing_from_many_threads_loses_nothing() -> None:
    listener = Listener(LeasesExpired)
    bus = EventBus({"one": listener}, 10_000)

    def publish(first: int) -> None:
        for number in range(first, first + 500):
            bus.publish(expired(number))

    with delivering(bus):
        threads = [threading.Thread(target=publish, args=(first,)) for first in range(0, 2000, 500)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_SECONDS)
    heard = [event.dropped_slots for event in listener.heard if isinstance(event, LeasesExpired)]
    assert sorted(heard) == list(range(2000))
    for first in range(0, 2000, 500):
        own = [number for number in heard if first <= number < first + 500]
        assert own == sorted(own)
