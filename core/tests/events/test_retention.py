"""Events that are kept are noticed; events that are let go are not."""

from __future__ import annotations

from collections import deque

from core.tests.events.listeners import WAIT_SECONDS, Listener, bus_of, expired
from lmcache_core.contracts.events import Event, LeasesExpired
from lmcache_core.contracts.subscriber import Subscriber, Subscriptions
from lmcache_core.events.subscriber_costs import KEPT_SECONDS, SAMPLES_MAX, Retention
from lmcache_core.events.subscriber_queue import SubscriberState
from lmcache_devkit.fake_clock import FakeClock


class Keeps(Subscriber):
    def __init__(self, how_many: int | None) -> None:
        self.kept: deque[Event] = deque(maxlen=how_many)

    def subscriptions(self) -> Subscriptions:
        return {LeasesExpired: self.kept.append}


def test_one_that_keeps_everything_is_seen_and_one_that_keeps_a_little_is_not() -> None:
    clock = FakeClock()
    hoards, forgets = Keeps(None), Keeps(20)
    bus = bus_of({"hoards": hoards, "forgets": forgets}, 1000, now=clock.monotonic)
    queues = [bus.queue_of("hoards"), bus.queue_of("forgets")]
    for number in range(8000):
        bus.publish(expired(number))
        clock.advance(0.01)
        if number % 100 == 99:
            for queue in queues:
                queue._deliver()
            bus.watch()
    seen = bus.counters().subscribers
    assert seen["hoards"].state is SubscriberState.RETAINING
    old_enough = 8000 - KEPT_SECONDS / 0.01
    assert abs(seen["hoards"].retained_events - old_enough) < old_enough / 2
    assert (seen["forgets"].state, seen["forgets"].retained_events) == (SubscriberState.OK, 0)
    hoards.kept.clear()
    bus.watch()
    assert bus.counters().subscribers["hoards"].state is SubscriberState.OK


def test_a_leak_of_months_is_counted_with_a_bounded_number_of_samples() -> None:
    clock = FakeClock()
    retention, kept = Retention(clock.monotonic), list[Event]()
    number = 0
    for _ in range(5 * SAMPLES_MAX):
        number = max(number + 1, retention.next_number)
        kept.append(retention.sample(expired(number), number))
        clock.advance(1.0)
        retention.check()
        assert len(retention._samples) <= SAMPLES_MAX
    clock.advance(KEPT_SECONDS)
    retention.check()
    assert retention.kept_events == number
    del kept[:]
    retention.check()
    assert retention.kept_events == 0
    assert not retention._samples


def test_a_sample_is_equal_to_the_event_and_nobody_elses() -> None:
    event = expired(7)
    sample = Retention().sample(event, 1)
    assert sample == event
    assert sample is not event


def test_each_subscriber_is_given_every_event_once_sampled_or_not() -> None:
    listener = Listener(LeasesExpired)
    bus = bus_of({"one": listener}, 1000)
    for number in range(500):
        bus.publish(expired(number))
    assert bus.close(WAIT_SECONDS)
    assert listener.heard == [expired(number) for number in range(500)]
