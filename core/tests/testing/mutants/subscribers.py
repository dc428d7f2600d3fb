"""Subscribers: a right one and mutants."""

from __future__ import annotations

from core.tests.testing.mutants.planted import Planted
from lmcache_core.contracts.events import ChunksStored, Event, LookupFinished
from lmcache_core.contracts.subscriber import Subscriber, Subscriptions
from lmcache_core.testing.subscriber_suite import SubscriberSuite


class CountsChunks(Subscriber):
    """Right in everything; each mutant below is wrong in one thing."""

    def __init__(self, settings: None) -> None:
        self.chunks = 0

    def subscriptions(self) -> Subscriptions:
        return {ChunksStored: self.stored}

    def stored(self, event: ChunksStored) -> None:
        self.chunks += event.chunks


PLANTED = Planted("subscribers.py", CountsChunks)


class ListensToEverything(CountsChunks):
    """Right, too."""

    def subscriptions(self) -> Subscriptions:
        return {Event: lambda event: None}


@PLANTED.killed_by("it_subscribes_to_events")
class SubscribesToNothing(CountsChunks):
    def subscriptions(self) -> Subscriptions:
        return {}


@PLANTED.killed_by("it_subscribes_to_events")
class SubscribesToNames(CountsChunks):
    def subscriptions(self) -> Subscriptions:
        return {"ChunksStored": self.stored}  # type: ignore[dict-item]


@PLANTED.killed_by("every_event_is_taken_whatever_its_fields_say")
class ExpectsASalt(CountsChunks):
    def stored(self, event: ChunksStored) -> None:
        event.cache_salt[0].upper()


@PLANTED.killed_by("every_event_is_taken_whatever_its_fields_say")
class DividesByChunks(CountsChunks):
    def stored(self, event: ChunksStored) -> None:
        self.chunks = event.payload_bytes // event.chunks


@PLANTED.killed_by("memory_does_not_grow_with_events")
class KeepsEveryRequest(CountsChunks):
    def __init__(self, settings: None) -> None:
        super().__init__(settings)
        self.seen: set[str] = set()

    def subscriptions(self) -> Subscriptions:
        return {LookupFinished: lambda event: self.seen.add(event.request_id)}


@PLANTED.killed_by("on_the_bus_nothing_fails_and_nothing_is_left")
class FailsLater(CountsChunks):
    """Takes a few events and then no more, as one whose connection breaks."""

    def stored(self, event: ChunksStored) -> None:
        super().stored(event)
        if self.chunks > 3:
            raise ConnectionError("gone")


class TestListensToEverything(SubscriberSuite):
    offer = PLANTED.offer(ListensToEverything)


globals().update(PLANTED.suites(SubscriberSuite, __name__))
