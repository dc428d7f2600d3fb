"""The event bus: order, routes, bounds, and an end."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from core.tests.events.listeners import WAIT_SECONDS, Listener, bus_of, delivering, expired
from lmcache_core.contracts.counts import SubscriberState
from lmcache_core.contracts.events import ChunksEvicted, Event, LeasesExpired, StoresDropped
from lmcache_core.contracts.subscriber import Subscriber, Subscriptions
from lmcache_devkit.fake_server_view import FakeServerView


def test_events_come_in_order_to_those_who_asked_for_them() -> None:
    one, other = Listener(LeasesExpired), Listener(StoresDropped, LeasesExpired)
    bus = bus_of({"one": one, "other": other}, 100)
    events = [expired(0), StoresDropped("fs", 1, 1, "full"), expired(1), ChunksEvicted(1, 1, 0.5)]
    with delivering(bus):
        for event in events:
            bus.publish(event)
    assert one.heard == [events[0], events[2]]
    assert other.heard == events[:3]
    assert {name: queue.delivered for name, queue in bus.counters().subscribers.items()} == {"one": 2, "other": 3}
    assert bus.counters().delivered == 5


def test_events_are_delivered_while_the_bus_runs() -> None:
    heard = threading.Event()
    bus = bus_of({"one": Listener(LeasesExpired, then=lambda event: heard.set())}, 100)
    with delivering(bus):
        for _ in range(3):
            bus.publish(expired(0))
            assert heard.wait(WAIT_SECONDS)
            heard.clear()


def test_a_subscription_to_the_root_is_one_to_everything() -> None:
    all_of_them = Listener(Event)
    bus = bus_of({"all": all_of_them}, 100)
    assert bus.wants(ChunksEvicted)
    bus.publish(expired(1))
    bus.publish(StoresDropped("fs", 1, 1, "full"))
    assert bus.close(WAIT_SECONDS)
    assert len(all_of_them.heard) == 2


def test_an_event_without_subscribers_is_not_kept() -> None:
    bus = bus_of({"one": Listener(StoresDropped)}, 1)
    assert bus.wants(StoresDropped)
    assert not bus.wants(LeasesExpired)
    for number in range(5):
        bus.publish(expired(number))
    counters = bus.counters()
    assert (counters.waiting, counters.dropped) == (0, {})


def test_a_full_queue_drops_the_newest_and_counts_by_type() -> None:
    listener = Listener(LeasesExpired, StoresDropped)
    bus = bus_of({"one": listener}, 3)
    for number in range(5):
        bus.publish(expired(number))
    bus.publish(StoresDropped("fs", 1, 1, "full"))
    assert bus.counters().waiting == 3
    assert bus.counters().dropped == {"LeasesExpired": 2, "StoresDropped": 1}
    assert bus.close(WAIT_SECONDS)
    assert listener.heard == [expired(0), expired(1), expired(2)]


def test_one_that_fails_harms_no_other_and_is_named(caplog: pytest.LogCaptureFixture) -> None:
    def fail(event: Event) -> None:
        raise ValueError("cannot count")

    bad, good = Listener(LeasesExpired, then=fail), Listener(LeasesExpired)
    bus = bus_of({"bad": bad, "good": good}, 5000)
    with caplog.at_level(logging.ERROR), delivering(bus):
        for number in range(1500):
            bus.publish(expired(number))
    assert len(good.heard) == 1500
    assert bus.counters().failed == {"bad": 1500}
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [f"subscriber failed subscriber=bad event=LeasesExpired failures={count}" for count in (1, 1001)]
    assert "cannot count" in caplog.text


def test_a_close_delivers_what_waits_closes_each_once_and_ends_the_thread() -> None:
    def fail() -> None:
        raise OSError("disk full")

    bad, good = Listener(LeasesExpired), Listener(LeasesExpired)
    bad.close = fail  # type: ignore[method-assign]
    bus = bus_of({"bad": bad, "good": good}, 10)
    bus.publish(expired(1))
    with delivering(bus) as threads:
        assert bus.close(WAIT_SECONDS)
        for thread in threads:
            thread.join(WAIT_SECONDS)
            assert not thread.is_alive()
        assert bus.close(WAIT_SECONDS)
    assert good.heard == [expired(1)]
    assert good.closed == 1
    assert bus.counters().failed == {"bad": 1}
    bus.publish(expired(2))
    assert bus.counters().dropped == {"LeasesExpired": 2}


def test_publishing_from_many_threads_loses_nothing() -> None:
    listener = Listener(LeasesExpired)
    bus = bus_of({"one": listener}, 10_000)

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


def test_a_subscriber_gets_the_server_before_its_first_event_and_is_called_after_each_batch() -> None:
    story: list[Any] = []

    class Tells(Listener):
        def begin(self, server: Any) -> None:
            story.append(server.info.instance_id)

        def batch_done(self) -> None:
            story.append("done")

    bus = bus_of({"one": Tells(LeasesExpired, then=story.append)}, 100)
    bus.publish(expired(0))
    bus.publish(expired(1))
    bus.begin(FakeServerView())
    with delivering(bus):
        pass
    assert story == ["instance", expired(0), expired(1), "done"]


def test_one_that_cannot_begin_is_ended_and_nothing_is_kept_for_it(caplog: pytest.LogCaptureFixture) -> None:
    class Unable(Listener):
        def begin(self, server: Any) -> None:
            raise OSError("port 9090 is taken")

    unable, good = Unable(LeasesExpired, ChunksEvicted), Listener(LeasesExpired)
    bus = bus_of({"unable": unable, "good": good}, 100)
    bus.begin(FakeServerView())
    bus.publish(expired(0))
    assert bus.wants(ChunksEvicted)
    with delivering(bus):
        assert bus.queue_of("unable").is_over.wait(WAIT_SECONDS)
        assert not bus.wants(ChunksEvicted)
        assert bus.wants(LeasesExpired)
        bus.publish(expired(1))
    queues = bus.counters().subscribers
    assert queues["unable"].state is SubscriberState.ENDED
    assert (queues["unable"].delivered, queues["unable"].dropped) == (0, {"LeasesExpired": 1})
    assert queues["unable"].last_error == "begin: OSError: port 9090 is taken"
    assert (unable.heard, unable.closed) == ([], 1)
    assert good.heard == [expired(0), expired(1)]
    assert "subscriber=unable event=begin" in caplog.text


def test_a_base_and_a_subclass_are_two_calls_in_the_order_of_the_subscriptions() -> None:
    calls: list[str] = []

    class Both(Subscriber):
        def subscriptions(self) -> Subscriptions:
            return {Event: lambda event: calls.append("base"), LeasesExpired: lambda event: calls.append("own")}

    bus = bus_of({"both": Both()}, 10)
    bus.publish(expired(1))
    assert bus.close(WAIT_SECONDS)
    assert calls == ["base", "own"]
    assert bus.counters().delivered == 1
