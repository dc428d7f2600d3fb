"""Core's own subscriber keeps the laws, and subscribers that break one are found by it."""

from __future__ import annotations

import inspect

import pytest

from lmcache_core.contracts.events import ChunksStored, Event, LookupFinished
from lmcache_core.contracts.subscriber import Subscriber, Subscriptions
from lmcache_core.testing.subscriber_suite import SubscriberSuite


class TestLog(SubscriberSuite):
    offer = "log"


class CountsChunks(Subscriber):
    """Right in everything; each mutant below is wrong in one thing."""

    def __init__(self) -> None:
        self.chunks = 0

    def subscriptions(self) -> Subscriptions:
        return {ChunksStored: self.stored}

    def stored(self, event: ChunksStored) -> None:
        self.chunks += event.chunks


class ListensToEverything(CountsChunks):
    def subscriptions(self) -> Subscriptions:
        return {Event: lambda event: None}


class SubscribesToNothing(CountsChunks):
    def subscriptions(self) -> Subscriptions:
        return {}


class SubscribesToNames(CountsChunks):
    def subscriptions(self) -> Subscriptions:
        return {"ChunksStored": self.stored}  # type: ignore[dict-item]


class ExpectsASalt(CountsChunks):
    def stored(self, event: ChunksStored) -> None:
        event.cache_salt[0].upper()


class DividesByChunks(CountsChunks):
    def stored(self, event: ChunksStored) -> None:
        self.chunks = event.payload_bytes // event.chunks


class KeepsEveryRequest(CountsChunks):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def subscriptions(self) -> Subscriptions:
        return {LookupFinished: lambda event: self.seen.add(event.request_id)}


class FailsLater(CountsChunks):
    """Takes a few events and then no more, as one whose connection breaks."""

    def stored(self, event: ChunksStored) -> None:
        super().stored(event)
        if self.chunks > 3:
            raise ConnectionError("gone")


KILLED_BY = {
    SubscribesToNothing: "test_it_subscribes_to_events",
    SubscribesToNames: "test_it_subscribes_to_events",
    ExpectsASalt: "test_every_event_is_taken_whatever_its_fields_say",
    DividesByChunks: "test_every_event_is_taken_whatever_its_fields_say",
    KeepsEveryRequest: "test_memory_does_not_grow_with_events",
    FailsLater: "test_on_the_bus_nothing_fails_and_nothing_is_left",
}
LAWS = sorted(name for name in dir(SubscriberSuite) if name.startswith("test_"))


def judge(kind: type[CountsChunks], law: str) -> None:
    """Call one law with what its fixtures would give it."""
    method = getattr(SubscriberSuite(), law)
    assert list(inspect.signature(method).parameters) == ["subscriber"]
    method(subscriber=kind())


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("kind", [CountsChunks, ListensToEverything], ids=lambda kind: kind.__name__)
def test_a_subscriber_that_is_right_keeps_every_law(kind: type[CountsChunks], law: str) -> None:
    judge(kind, law)


@pytest.mark.parametrize("mutant", KILLED_BY, ids=lambda kind: kind.__name__)
def test_a_planted_bug_is_found_by_the_law_that_is_about_it(mutant: type[CountsChunks]) -> None:
    with pytest.raises((Exception, pytest.fail.Exception)):
        judge(mutant, KILLED_BY[mutant])
