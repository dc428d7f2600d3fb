"""The event bus: publishing is an append to the queue of each subscriber that wants the event."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lmcache_core.contracts.events import Event
from lmcache_core.contracts.server_view import ServerView
from lmcache_core.contracts.subscriber import Subscriber
from lmcache_core.events.lane import Lane, LaneLimits
from lmcache_core.events.lane_status import LaneStatus

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BusCounters:
    """Sums over all subscribers since the start: `dropped` by event type, `failed` by subscriber, where there are any."""

    delivered: int
    waiting: int
    dropped: Mapping[str, int]
    failed: Mapping[str, int]
    lanes: Mapping[str, LaneStatus]
    """Each subscriber's own, by name."""


class EventBus:
    """Brings events to subscribers, to each in the order in which they were published.

    A subscription to a type is one to its subclasses, too.  Each subscriber has a queue and a thread of its own
    (`threads`).  What its queue has no room for is dropped for it alone, and counted."""

    def __init__(
        self,
        subscribers: Mapping[str, Subscriber],
        limits: LaneLimits,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._routes: dict[type[Event], tuple[Lane, ...]] = {}
        self._lock = threading.Lock()  # guards changes of _routes
        self._lanes = {
            name: Lane(name, subscriber, limits, self._forget_routes, now) for name, subscriber in subscribers.items()
        }
        self._left: list[Lane] | None = None

    def publish(self, event: Event) -> None:
        try:
            lanes = self._routes[type(event)]
        except KeyError:
            lanes = self._find_route(type(event))
        for lane in lanes:
            queue = lane.queue
            # first this and then the look at `room`, as the lane does it the other way round: one sees the other
            queue.append(event)
            if len(queue) > lane.room:
                lane.press()

    def wants(self, kind: type[Event]) -> bool:
        try:
            return bool(self._routes[kind])
        except KeyError:
            return bool(self._find_route(kind))

    def lane(self, name: str) -> Lane:
        return self._lanes[name]

    def begin(self, server: ServerView) -> None:
        """What subscribers are told before their first event.  Before the threads are started."""
        for lane in self._lanes.values():
            lane.begin(server)

    def threads(self) -> Sequence[tuple[str, Callable[[], None]]]:
        """Name and body of each thread; a body returns after `close`."""
        return [(f"events-{name}", lane.run) for name, lane in self._lanes.items()]

    def watch(self) -> None:
        """Look after the subscribers.  To be called about once per second, by one thread."""
        for lane in self._lanes.values():
            lane.check()

    def close(self, deadline_seconds: float) -> bool:
        """Deliver what is waiting, close the subscribers, and end the threads; events published from now on are dropped.

        False when a subscriber took longer than the deadline; it is left behind, and what waited is counted as dropped.
        Again: nothing, and the same answer."""
        if self._left is not None:
            return not self._left
        deadline = time.monotonic() + deadline_seconds
        for lane in self._lanes.values():
            lane.close()
        for lane in self._lanes.values():
            if not lane.is_running:  # never started, or waiting to be started again
                threading.Thread(target=lane.run, name=f"events-{lane.name}-close", daemon=True).start()
        self._left = left = [
            lane for lane in self._lanes.values() if not lane.is_over.wait(max(0.0, deadline - time.monotonic()))
        ]
        for lane in left:
            lane.abandon()
        if left:
            names = ",".join(lane.name for lane in left)
            logger.warning("subscribers were left behind names=%s deadline_seconds=%.1f", names, deadline_seconds)
        return not left

    def counters(self) -> BusCounters:
        lanes = {name: lane.status() for name, lane in self._lanes.items()}
        dropped: Counter[str] = Counter()
        for status in lanes.values():
            dropped.update(status.dropped)
        return BusCounters(
            delivered=sum(status.delivered for status in lanes.values()),
            waiting=sum(status.waiting for status in lanes.values()),
            dropped=dict(dropped),
            failed={name: status.failed for name, status in lanes.items() if status.failed},
            lanes=lanes,
        )

    def _find_route(self, kind: type[Event]) -> tuple[Lane, ...]:
        """Who wants events of this type; remembered, so that it is worked out once per type."""
        with self._lock:
            route = tuple(lane for lane in self._lanes.values() if lane.wants(kind))
            self._routes[kind] = route
        return route

    def _forget_routes(self) -> None:
        with self._lock:
            self._routes = {}
