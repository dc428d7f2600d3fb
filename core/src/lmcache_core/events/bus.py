"""The event bus: publishing is an append to the queue of each subscriber that wants the event."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec

from lmcache_core.contracts.counts import SubscriberStatus
from lmcache_core.contracts.events import Event
from lmcache_core.contracts.server_view import ServerView
from lmcache_core.events.subscriber_calls import AskedSubscriber
from lmcache_core.events.subscriber_queue import QueueLimits, SubscriberQueue

logger = logging.getLogger(__name__)


class BusCounters(msgspec.Struct, frozen=True):
    """Sums over all subscribers since the start: `dropped` by event type, `failed` by subscriber, where there are any."""

    delivered: int
    waiting: int
    dropped: Mapping[str, int]
    failed: Mapping[str, int]
    subscribers: Mapping[str, SubscriberStatus]
    """By the name of the subscriber."""


class EventBus:
    """Brings events to subscribers, to each in the order in which they were published.

    A subscription to a type is one to its subclasses, too.  Each subscriber has a queue and a thread of its own
    (`threads`).  Events beyond its queue's capacity are dropped for it alone, and counted."""

    def __init__(
        self, subscribers: Mapping[str, AskedSubscriber], limits: QueueLimits, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._routes: dict[type[Event], tuple[SubscriberQueue, ...]] = {}
        self._lock = threading.Lock()  # guards changes of _routes
        self._queues = {
            name: SubscriberQueue(name, subscriber, limits, self._forget_routes, now)
            for name, subscriber in subscribers.items()
        }
        self._left: list[SubscriberQueue] | None = None

    def publish(self, event: Event) -> None:
        try:
            queues = self._routes[type(event)]
        except KeyError:
            queues = self._find_route(type(event))
        for queue in queues:
            events = queue.events
            # append first and then read `limit`; the queue's thread does it the other way round: one sees the other
            events.append(event)
            if len(events) > queue.limit:
                queue.on_limit()

    def wants(self, kind: type[Event]) -> bool:
        try:
            return bool(self._routes[kind])
        except KeyError:
            return bool(self._find_route(kind))

    def queue_of(self, name: str) -> SubscriberQueue:
        return self._queues[name]

    def begin(self, server: ServerView) -> None:
        """Passed to subscribers before their first event.  Call it before the threads are started."""
        for queue in self._queues.values():
            queue.begin(server)

    def threads(self) -> Sequence[tuple[str, Callable[[], None]]]:
        """Name and body of each thread; a body returns after `close`."""
        return [(f"events-{name}", queue.run) for name, queue in self._queues.items()]

    def close(self, deadline_seconds: float) -> bool:
        """Deliver what is waiting, close the subscribers, and end the threads; events published from now on are dropped.

        False when a subscriber took longer than the deadline; it is left behind, and what waited is counted as dropped.
        Again: nothing, and the same answer."""
        if self._left is not None:
            return not self._left
        deadline = time.monotonic() + deadline_seconds
        for queue in self._queues.values():
            queue.close()
        for queue in self._queues.values():
            if not queue.is_running:  # never started, or waiting to be started again
                threading.Thread(target=queue.run, name=f"events-{queue.name}-close", daemon=True).start()
        self._left = left = [
            queue for queue in self._queues.values() if not queue.is_over.wait(max(0.0, deadline - time.monotonic()))
        ]
        for queue in left:
            queue.abandon()
        if left:
            names = ",".join(queue.name for queue in left)
            logger.warning("subscribers were left behind names=%s deadline_seconds=%.1f", names, deadline_seconds)
        return not left

    def counters(self) -> BusCounters:
        subscribers = {name: queue.status() for name, queue in self._queues.items()}
        dropped: Counter[str] = Counter()
        for status in subscribers.values():
            dropped.update(status.dropped)
        return BusCounters(
            delivered=sum(status.delivered for status in subscribers.values()),
            waiting=sum(status.waiting for status in subscribers.values()),
            dropped=dict(dropped),
            failed={name: status.failed for name, status in subscribers.items() if status.failed},
            subscribers=subscribers,
        )

    def _find_route(self, kind: type[Event]) -> tuple[SubscriberQueue, ...]:
        """The queues of subscribers that want events of this type; cached by type."""
        with self._lock:
            route = tuple(queue for queue in self._queues.values() if queue.wants(kind))
            self._routes[kind] = route
        return route

    def _forget_routes(self) -> None:
        with self._lock:
            self._routes = {}
