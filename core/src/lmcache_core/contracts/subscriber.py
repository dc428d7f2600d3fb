"""Subscribers: plugins that receive events."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lmcache_core.contracts.conditions import Condition
from lmcache_core.contracts.events import Event
from lmcache_core.contracts.server_view import ServerView

Subscriptions = Mapping[type[Event], Callable[[Any], None]]


class Subscriber(ABC):
    """Turns events into logs, metrics or spans, on a thread of its own and off every request's path."""

    @abstractmethod
    def subscriptions(self) -> Subscriptions:
        """Event types and what to call with each.  Asked once.  A callback that raises is logged and counted."""

    def begin(self, server: ServerView) -> None:  # noqa: B027 - most subscribers need the events alone
        """The server is about to start: called once, before the first event.  What it raises ends the subscriber, which is
        logged and shown in `/status`, and not the start."""

    def batch_done(self) -> None:  # noqa: B027 - most subscribers need the events alone
        """All events that were waiting have been delivered: called after each batch, and every few seconds while no events
        come, which is a good moment to write what was gathered.  On the same thread."""

    def conditions(self) -> Sequence[Condition]:
        """What an operator should know about it, such as a collector that cannot be reached, as long as it lasts; empty while
        all is well.  Asked about once per second, by a thread that does nothing else and may overlap any other call.
        Should not block."""
        return ()

    def close(self) -> None:  # noqa: B027 - most subscribers have nothing to close
        """The last event was delivered."""
