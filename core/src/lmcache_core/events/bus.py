"""The event bus: publishing is an append to a bounded queue, delivering is one thread's work."""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lmcache_core.contracts.events import Event
from lmcache_core.contracts.subscriber import Subscriber

logger = logging.getLogger(__name__)

_LOG_EVERY: Final = 1000
"""A subscriber that keeps failing is logged once per this many failures."""


@dataclass(frozen=True, slots=True)
class BusCounters:
    """`dropped` by event type, `failed` by subscriber, since the start."""

    delivered: int
    waiting: int
    dropped: Mapping[str, int]
    failed: Mapping[str, int]


_Route = tuple[tuple[str, Callable[[Any], None]], ...]


class EventBus:
    """Brings events to subscribers, in the order in which they were published, on the thread that runs `run`.

    A subscription to a type is one to its subclasses, too.  `capacity` events may wait (threads that publish at the
    same moment may each add one more); later ones are dropped and counted.
    """

    def __init__(self, subscribers: Mapping[str, Subscriber], capacity: int) -> None:
        self._subscribers = dict(subscribers)
        self._capacity = capacity
        self._queue: deque[Event] = deque()
        self._routes: dict[type[Event], _Route] = {}
        self._failed: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()
        self._delivered = 0
        self._closed = False
        self._drop_lock = threading.Lock()  # guards _dropped
        self._delivery = threading.Lock()  # held by whoever delivers; guards _delivered and _failed
        self._wake = threading.Event()
        self._callbacks = [
            (kind, name, callback)
            for name, subscriber in self._subscribers.items()
            for kind, callback in self._subscriptions(name, subscriber)
        ]

    def publish(self, event: Event) -> None:
        kind = type(event)
        route = self._routes.get(kind)
        if route is None:
            route = self._find_route(kind)
        if not route:
            return
        if len(self._queue) >= self._capacity or self._closed:
            with self._drop_lock:
                self._dropped[kind.__name__] += 1
            return
        self._queue.append(event)
        if not self._wake.is_set():
            self._wake.set()

    def wants(self, kind: type[Event]) -> bool:
        route = self._routes.get(kind)
        return bool(self._find_route(kind) if route is None else route)

    def run(self) -> None:
        """Deliver until `close`.  For a thread of its own."""
        self._wake.set()  # what was waiting when this thread failed
        while not self._closed:
            self._wake.wait()
            self._wake.clear()  # before delivering: what is published from here on sets it again
            with self._delivery:
                self._deliver()

    def close(self, deadline_seconds: float) -> bool:
        """Deliver what is waiting, close the subscribers, and end `run`; events published from now on are dropped.

        False when a subscriber took longer than the deadline; it is left behind, and what waited is counted as dropped."""
        if self._closed:
            return True
        self._closed = True
        self._wake.set()
        # a thread of its own, because a subscriber that hangs must not keep the server from stopping
        last = threading.Thread(target=self._finish, name="event-bus-close", daemon=True)
        last.start()
        last.join(deadline_seconds)
        with self._drop_lock:
            while (event := self._next()) is not None:
                self._dropped[type(event).__name__] += 1
        if last.is_alive():
            logger.warning("event bus left a subscriber behind deadline_seconds=%.1f", deadline_seconds)
        return not last.is_alive()

    def counters(self) -> BusCounters:
        with self._drop_lock:
            dropped = dict(self._dropped)
        return BusCounters(self._delivered, len(self._queue), dropped, dict(self._failed))

    def _finish(self) -> None:
        with self._delivery:
            self._deliver()
            for name, subscriber in self._subscribers.items():
                try:
                    subscriber.close()
                except Exception as error:  # noqa: BLE001  # one subscriber's fault is not the others'
                    self._note_failure(name, "close", error)

    def _deliver(self) -> None:
        """Empty the queue.  The caller holds `_delivery`."""
        while (event := self._next()) is not None:
            for name, callback in self._routes[type(event)]:
                try:
                    callback(event)
                except Exception as error:  # noqa: BLE001  # one subscriber's fault is not the others'
                    self._note_failure(name, type(event).__name__, error)
            self._delivered += 1

    def _next(self) -> Event | None:
        try:
            return self._queue.popleft()
        except IndexError:
            return None

    def _note_failure(self, name: str, what: str, error: Exception) -> None:
        self._failed[name] += 1
        count = self._failed[name]
        if count % _LOG_EVERY == 1:
            logger.error("subscriber failed subscriber=%s event=%s failures=%d", name, what, count, exc_info=error)

    def _find_route(self, kind: type[Event]) -> _Route:
        """Who wants events of this type; remembered, so that it is worked out once per type."""
        route = tuple((name, callback) for wanted, name, callback in self._callbacks if issubclass(kind, wanted))
        self._routes[kind] = route
        return route

    def _subscriptions(self, name: str, subscriber: Subscriber) -> list[tuple[type[Event], Callable[[Any], None]]]:
        try:
            subscriptions = list(subscriber.subscriptions().items())
            for kind, callback in subscriptions:
                if not (isinstance(kind, type) and issubclass(kind, Event) and callable(callback)):
                    raise TypeError(f"a subscription maps an event type to a function, not {kind!r} to {callback!r}")
            return subscriptions
        except Exception as error:  # noqa: BLE001  # the server can do without a subscriber
            self._note_failure(name, "subscriptions", error)
            return []
