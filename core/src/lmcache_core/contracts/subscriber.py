"""Subscribers: plugins that receive events."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from lmcache_core.contracts.conditions import ReportsConditions
from lmcache_core.contracts.events import Event
from lmcache_core.contracts.server_view import ServerView

Subscriptions = Mapping[type[Event], Callable[[Any], None]]


class Subscriber(ReportsConditions, ABC):
    """Turns events into logs, metrics or spans, on a thread of its own and off every request's path."""

    @abstractmethod
    def subscriptions(self) -> Subscriptions:
        """Event types and what to call with each.  Asked once.  A callback that raises is logged and counted."""

    def begin(self, server: ServerView) -> None:
        """The server is about to start: called once, before the first event.  What it raises ends the subscriber, which is
        logged and shown in `/status`, and not the start."""

    def batch_done(self) -> None:
        """All events that were waiting have been delivered: called after each batch, and every few seconds while no events
        come, which is a good moment to write what was gathered.  On the same thread."""

    def close(self) -> None:
        """The last event was delivered."""
