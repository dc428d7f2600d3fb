"""Calls one subscriber.  What it raises is counted and logged, and reaches no other one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from lmcache_core.contracts.events import Event
from lmcache_core.contracts.server_view import ServerView
from lmcache_core.contracts.subscriber import Subscriber, Subscriptions
from lmcache_core.model.errors import error_message

logger = logging.getLogger(__name__)

BEGIN_SECONDS: Final = 10.0
"""How long a subscriber may at least take to begin: it may have libraries to import."""
RECENT_SECONDS: Final = 60.0
_LOG_EVERY: Final = 1000
"""A subscriber that keeps failing is logged once per this many failures."""
_ERROR_CHARACTERS: Final = 300

_Call = Callable[[Any], None]


class AskedSubscriber(NamedTuple):
    """A subscriber whose subscriptions are known: the contract says that they are asked for once."""

    subscriber: Subscriber
    subscriptions: Subscriptions


class SubscriberCalls:
    """Whatever the subscriber raises is counted and logged.  One thread calls; any may look."""

    def __init__(self, name: str, asked: AskedSubscriber, timeout_seconds: float, now: Callable[[], float]) -> None:
        self.failed = 0
        self.last_error = ""
        self.slowest_seconds = 0.0
        """The longest that an event, or the end of a batch, has taken."""
        self._subscriber, self._subscriptions = asked
        self._name, self._timeout, self._now = name, timeout_seconds, now
        self._failed_at: float | None = None
        self._stuck_at: float | None = None
        """While it is being called: when that takes too long."""
        self._calls: dict[type[Event], tuple[_Call, ...]] = {}

    def wants(self, kind: type[Event]) -> bool:
        return any(issubclass(kind, wanted) for wanted in self._subscriptions)

    @property
    def is_stuck(self) -> bool:
        stuck_at = self._stuck_at
        return stuck_at is not None and self._now() > stuck_at

    @property
    def failed_lately(self) -> bool:
        return self._failed_at is not None and self._now() - self._failed_at < RECENT_SECONDS

    def begin(self, server: ServerView) -> bool:
        """False when it raised."""
        return self._call("begin", lambda: self._subscriber.begin(server), max(BEGIN_SECONDS, self._timeout))

    def hand_over(self, event: Event) -> float:
        """Returns the time when it came back."""
        kind = type(event)
        started = self._now()
        self._stuck_at = started + self._timeout
        try:
            for callback in self._calls.get(kind) or self._find_calls(kind):
                try:
                    callback(event)
                except BaseException as error:  # noqa: BLE001 - a plugin's own, which may be SystemExit
                    self._note_failure(kind.__name__, error)
        finally:
            self._stuck_at = None
        return self._note_time(started)

    def end_batch(self) -> None:
        started = self._now()
        self._call("batch_done", self._subscriber.batch_done, self._timeout)
        self._note_time(started)

    def close(self) -> None:
        self._call("close", self._subscriber.close, self._timeout)

    def _call(self, what: str, function: Callable[[], None], timeout_seconds: float) -> bool:
        self._stuck_at = self._now() + timeout_seconds
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - a plugin's own, which may be SystemExit
            self._note_failure(what, error)
            return False
        finally:
            self._stuck_at = None
        return True

    def _find_calls(self, kind: type[Event]) -> tuple[_Call, ...]:
        calls = tuple(callback for wanted, callback in self._subscriptions.items() if issubclass(kind, wanted))
        self._calls[kind] = calls
        return calls

    def _note_time(self, started: float) -> float:
        now = self._now()
        if now - started > self.slowest_seconds:
            self.slowest_seconds = now - started
        return now

    def _note_failure(self, what: str, error: BaseException) -> None:
        self.failed += 1
        self._failed_at = self._now()
        self.last_error = f"{what}: {type(error).__name__}: {error_message(error)}"[:_ERROR_CHARACTERS]
        if self.failed % _LOG_EVERY == 1:
            logger.error(
                "subscriber failed subscriber=%s event=%s failures=%d", self._name, what, self.failed, exc_info=error
            )
