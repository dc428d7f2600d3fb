"""One subscriber's own queue and thread, so that its delays and faults affect no other."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

import msgspec

from lmcache_core.contracts.counts import SubscriberState, SubscriberStatus
from lmcache_core.contracts.events import Event
from lmcache_core.contracts.server_view import ServerView
from lmcache_core.events.subscriber_calls import RECENT_SECONDS, AskedSubscriber, SubscriberCalls

GATHER_SECONDS: Final = 0.25
"""Events are delivered in batches this far apart: a thread that wakes up takes the interpreter from a request."""
IDLE_SECONDS: Final = 1.0
"""Without an event for this long, the thread sleeps until it is woken."""
QUIET_SECONDS: Final = 2.5
"""How often a subscriber without events is called, so that what it has gathered does not wait for the next event."""
SLICE_SECONDS: Final = 0.0002
PAUSE_SECONDS: Final = 0.0002
"""After this much work comes at least this pause.  A request gives the interpreter away many times, and beside a thread that
computes each time costs it what `take_turns` allows; in the pauses it gets it back at once."""
BURST_SECONDS: Final = 0.2
"""Unused CPU time is saved up to this limit: a batch that comes after a rest is not interrupted."""
_NEVER: Final = float("-inf")


class QueueLimits(msgspec.Struct, frozen=True):
    capacity: int
    """Events that may wait (threads that publish at the same moment may each add one more, for that moment)."""
    timeout_seconds: float = 1.0
    """A call that takes longer makes the state `stuck`."""
    cpu_ratio: float = 0.25
    """Share of one core that delivering may take; a close does not wait for it.  Metrics take 0.11 at 2,000 lookups of 64
    chunks per second, and with a limit of 0.1 they fall behind there."""


class CpuBudget:
    """Counts the CPU time of the thread that calls `update`, and says how long it has to rest to stay within `ratio` of a
    core.  Called before and after work, so that a long rest before it counts as one burst.  One thread at a time;
    `begin` when another one takes over."""

    def __init__(
        self,
        ratio: float,
        cpu_seconds: Callable[[], float] = time.thread_time,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ratio, self._cpu_seconds, self._now = ratio, cpu_seconds, now
        self._credit = BURST_SECONDS * ratio
        self.used_seconds = 0.0
        self.begin()

    def begin(self) -> None:
        """This thread is counted from now on."""
        self._cpu_before, self._before = self._cpu_seconds(), self._now()

    def update(self) -> float:
        """Count what was used since the last time.  Returns the seconds to rest, 0 where there is nothing to make up for."""
        cpu, now = self._cpu_seconds(), self._now()
        used, passed = cpu - self._cpu_before, now - self._before
        self._cpu_before, self._before = cpu, now
        self.used_seconds += used
        self._credit = min(self._credit + passed * self._ratio - used, BURST_SECONDS * self._ratio)
        return max(0.0, -self._credit / self._ratio)


class SubscriberQueue:
    """Publishers append to `events`, and call `on_limit` when there are more than `limit` then.  `run` is the thread's body.

    Every event that was appended is delivered, dropped or waiting, exactly once."""

    def __init__(
        self,
        name: str,
        subscriber: AskedSubscriber,
        limits: QueueLimits,
        ended: Callable[[], None] = lambda: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`ended` is called when the subscriber wants no more events although the server runs on."""
        self.name = name
        self.events: deque[Event] = deque()
        self.limit = 0
        """0: asleep, and the first event wakes; half the capacity: gathering; -1: takes no more."""
        self.is_running = False
        self.is_over = threading.Event()
        """Set when the subscriber is closed."""
        self._limits, self._ended, self._now = limits, ended, now
        self._calls = SubscriberCalls(name, subscriber, limits.timeout_seconds, now)
        self._server: ServerView | None = None
        self._lock = threading.Lock()  # guards changes of limit and _dropped
        self._turn = threading.Lock()  # held by the thread that runs
        self._wake = threading.Event()
        self._close = threading.Event()
        self._started = False
        self._is_ended = False
        self._abandoned = False
        self._busy_at = now()
        self._in_hand: Event | None = None
        self._delivered = 0
        self._dropped: dict[type[Event], int] = {}
        self._dropped_at = _NEVER
        self._budget = CpuBudget(limits.cpu_ratio)

    # Called by publishers and the bus, on any thread.

    def wants(self, kind: type[Event]) -> bool:
        return not self._is_ended and self._calls.wants(kind)

    def on_limit(self) -> None:
        """More events wait than `limit`: wake the thread, or drop the newest."""
        with self._lock:
            if self.limit < 0 or len(self.events) > self._limits.capacity:
                self._drop_newest()
            else:
                self.limit = self._limits.capacity
                self._wake.set()

    def begin(self, server: ServerView) -> None:
        """`run` hands it to the subscriber before the first event."""
        self._server = server

    def close(self) -> None:
        """Take no more events.  `run` delivers what waits, closes the subscriber and returns."""
        with self._lock:
            self.limit = -1
        self._close.set()
        self._wake.set()

    def abandon(self) -> None:
        """The subscriber does not come back in time: what waits is dropped."""
        self.close()
        self._abandoned = True
        with self._lock:
            while self.events:
                self._drop_newest()

    def status(self) -> SubscriberStatus:
        in_hand = self._in_hand
        oldest = self._first() if in_hand is None else in_hand
        with self._lock:
            by_type = list(self._dropped.items())
        dropped: Counter[str] = Counter()
        for kind, count in by_type:
            dropped[kind.__name__] += count
        return SubscriberStatus(
            state=self._state(),
            waiting=len(self.events) + (in_hand is not None),
            delivered=self._delivered,
            failed=self._calls.failed,
            dropped=dict(dropped),
            cpu_seconds=self._budget.used_seconds,
            slowest_seconds=self._calls.slowest_seconds,
            oldest_age_seconds=0.0 if oldest is None else max(0.0, time.time() - oldest.at),
            last_error=self._calls.last_error,
        )

    # Called on the subscriber's own thread.

    def run(self) -> None:
        """Deliver until `close`.  Where two threads call it, the second waits for the first."""
        with self._turn:
            if self.is_over.is_set():
                return
            self.is_running = True
            try:
                is_open = self._open()
                self._budget.begin()  # what it imported to begin does not delay its first events
                if is_open:
                    while not self._close.is_set():
                        self._gather()
                        self._deliver()
                    self._deliver()
                if not self._abandoned:
                    self._calls.close()
                    self.is_over.set()
            finally:
                self.is_running = False

    def _open(self) -> bool:
        """False when the subscriber cannot begin, and is ended."""
        if not self._started and self._server is not None:
            self._started = True
            if not self._calls.begin(self._server):
                self._end()
        return not self._is_ended

    def _end(self) -> None:
        self._is_ended = True
        self.abandon()
        self._abandoned = False
        self._ended()

    def _gather(self) -> None:
        """Wait for events, and a little longer for those that come with them."""
        if self._now() - self._busy_at > IDLE_SECONDS:
            self._await(0, QUIET_SECONDS)
            if not self._wake.is_set() and not self.events:
                self._calls.end_batch()
                return
        self._await(self._limits.capacity // 2, GATHER_SECONDS)
        self._set_limit(self._limits.capacity)

    def _await(self, limit: int, seconds: float) -> None:
        """Sleep until there are more than `limit` events, the time is over, or the queue is closed."""
        self._wake.clear()
        self._set_limit(limit)
        # published before this limit was set: no publisher would wake this thread
        if len(self.events) <= limit and not self._close.is_set():
            self._wake.wait(seconds)

    def _set_limit(self, limit: int) -> None:
        with self._lock:
            if self.limit >= 0:
                self.limit = limit

    def _deliver(self) -> None:
        """Hand over what is waiting now."""
        waiting = len(self.events)
        if not waiting:
            return
        self._budget.update()
        self._busy_at = counted_at = self._now()
        for _ in range(waiting):
            try:
                event = self.events.popleft()
            except IndexError:  # dropped meanwhile
                break
            if self._hand_over(event) - counted_at > SLICE_SECONDS:
                self._rest()
                counted_at = self._now()
        self._calls.end_batch()
        self._rest()

    def _rest(self) -> None:
        """Let requests go first, and make up for CPU time beyond the budget, unless the queue is being closed."""
        seconds = self._budget.update()
        if seconds > PAUSE_SECONDS:
            self._close.wait(seconds)
        elif not self._close.is_set():
            time.sleep(PAUSE_SECONDS)

    def _hand_over(self, event: Event) -> float:
        """Returns the time when it came back."""
        self._in_hand = event
        try:
            return self._calls.hand_over(event)
        finally:
            self._delivered += 1
            self._in_hand = None

    def _state(self) -> SubscriberState:
        oldest = self._first()
        if self._is_ended:
            return SubscriberState.ENDED
        if self._calls.is_stuck:
            return SubscriberState.STUCK
        if self._calls.failed_lately:
            return SubscriberState.FAILING
        waits_long = oldest is not None and time.time() - oldest.at > self._limits.timeout_seconds + GATHER_SECONDS
        if waits_long or self._now() - self._dropped_at < RECENT_SECONDS:
            return SubscriberState.BEHIND
        return SubscriberState.OK

    def _first(self) -> Event | None:
        try:
            return self.events[0]
        except IndexError:
            return None

    def _drop_newest(self) -> None:
        """The caller holds the lock."""
        try:
            event = self.events.pop()
        except IndexError:  # delivered meanwhile
            return
        kind = type(event)
        self._dropped[kind] = self._dropped.get(kind, 0) + 1
        self._dropped_at = self._now()
