"""Subscribers and buses for these tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from lmcache_core.contracts.events import Event, LeasesExpired
from lmcache_core.contracts.subscriber import Subscriber, Subscriptions
from lmcache_core.events.bus import EventBus
from lmcache_core.events.subscriber_calls import AskedSubscriber
from lmcache_core.events.subscriber_queue import QueueLimits

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


def bus_of(
    subscribers: Mapping[str, Subscriber],
    capacity: int,
    timeout_seconds: float = 1.0,
    cpu_ratio: float = 1.0,
    now: Callable[[], float] = time.monotonic,
) -> EventBus:
    asked = {name: AskedSubscriber(each, each.subscriptions()) for name, each in subscribers.items()}
    return EventBus(asked, QueueLimits(capacity, timeout_seconds, cpu_ratio), now)


@contextmanager
def delivering(bus: EventBus) -> Iterator[list[threading.Thread]]:
    """Its threads run meanwhile; all of them end."""
    threads = [threading.Thread(target=run, name=name, daemon=True) for name, run in bus.threads()]
    for thread in threads:
        thread.start()
    yield threads
    bus.close(WAIT_SECONDS)
    for thread in threads:
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert condition()
