"""Whoever wants to know what happens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from lmcache_core.contracts.events import Event

Subscriptions = Mapping[type[Event], Callable[[Any], None]]


class Subscriber(ABC):
    """Turns events into logs, metrics or spans, on the event bus's thread and off every request's path."""

    @abstractmethod
    def subscriptions(self) -> Subscriptions:
        """Event types and what to call with each.  Asked once.  A callback that raises is logged and counted."""

    def close(self) -> None:  # noqa: B027 - most subscribers have nothing to close
        """The last event was delivered."""
