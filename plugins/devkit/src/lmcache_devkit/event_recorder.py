"""Keeps what was published."""

from __future__ import annotations

from typing import TypeVar

from lmcache_core.contracts.events import Event

Kind = TypeVar("Kind", bound=Event)


class EventRecorder:
    """A `Publisher` whose events a test can look at."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def publish(self, event: Event) -> None:
        self.events.append(event)

    def wants(self, kind: type[Event]) -> bool:
        return True

    def of(self, kind: type[Kind]) -> list[Kind]:
        return [event for event in self.events if isinstance(event, kind)]
