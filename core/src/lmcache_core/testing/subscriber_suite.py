"""The laws of a subscriber, as tests.  A distribution runs them with two lines:

class TestAcme(SubscriberSuite):
    offer = "acme"
"""

from __future__ import annotations

import gc
import logging
import threading
import tracemalloc
from collections.abc import Iterator
from functools import cache
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from lmcache_core.contracts.events import Event
from lmcache_core.contracts.subscriber import Subscriber
from lmcache_core.events.bus import EventBus
from lmcache_core.events.lane import LaneLimits
from lmcache_core.testing.fake_server_view import FakeServerView
from lmcache_core.testing.fuzzing import FUZZ
from lmcache_core.testing.offer_under_test import OfferSuite, OpenableOffer

WARM_EVENTS = 10_000
"""So many names a subscriber may remember before it has to forget."""
MEMORY_EVENTS = 500
"""In each of the samples that memory is measured after."""
_SAMPLES = 3
BATCH_EVENTS = 50
EVENT_BYTES_MAX = 20
"""What may stay of an event on average; a request id alone is more."""
_FIELDS = {
    str: st.sampled_from(["", "model", "a/b"]) | st.text(max_size=40),
    int: st.integers(0, 2**63),
    float: st.floats(min_value=0, allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    int | None: st.none() | st.integers(0, 2**63),
    str | None: st.none() | st.text(max_size=40),
    bytes: st.binary(max_size=96),
}


class SubscriberSuite(OfferSuite):
    """Set `offer`; override `events_of` where it subscribes to events of your own with fields of other types."""

    kind: ClassVar[str] = "subscriber"

    def events_of(self, kind: type[Event]) -> SearchStrategy[Event]:
        """Events of this type, or of those that core publishes where it is the root of them all."""
        return st.one_of(
            [st.builds(each, **{name: _FIELDS[of] for name, of in fields}) for each, fields in _makers(kind)]
        )

    @pytest.fixture
    def subscriber(self, under_test: OpenableOffer) -> Iterator[Subscriber]:
        """Opened, and told about a server as a real one tells it."""
        subscriber = under_test.open()
        subscriber.begin(FakeServerView())
        yield subscriber
        subscriber.close()

    def test_it_subscribes_to_events(self, subscriber: Subscriber) -> None:
        assert isinstance(subscriber, Subscriber)
        subscriptions = subscriber.subscriptions()
        assert subscriptions, "a subscriber that subscribes to nothing is never called"
        for kind, callback in subscriptions.items():
            assert isinstance(kind, type)
            assert issubclass(kind, Event)
            assert callable(callback)

    @hypothesis_settings(FUZZ, max_examples=200)
    @given(data=st.data())
    def test_every_event_is_taken_whatever_its_fields_say(self, data: st.DataObject, subscriber: Subscriber) -> None:
        for kind, callback in subscriber.subscriptions().items():
            callback(data.draw(self.events_of(kind), label=kind.__name__))
        subscriber.batch_done()

    def test_on_the_bus_nothing_fails_and_nothing_is_left(self, subscriber: Subscriber) -> None:
        """The bus counts what a subscriber raises; events published from several threads reach it on one."""
        bus = EventBus({"under test": subscriber}, LaneLimits(capacity=10_000))
        events = [event for kind in subscriber.subscriptions() for event in _samples(kind)]

        def publish() -> None:
            for event in events:
                bus.publish(event)

        publishers = [threading.Thread(target=publish) for _ in range(4)]
        for thread in publishers:
            thread.start()
        for thread in publishers:
            thread.join()
        runners = [threading.Thread(target=run) for _, run in bus.threads()]
        for thread in runners:
            thread.start()
        assert bus.close(10.0), "it took more than ten seconds for a few events, or to close"
        for thread in runners:
            thread.join()
        counters = bus.counters()
        assert (counters.waiting, dict(counters.failed)) == (0, {})
        assert counters.delivered == 4 * len(events)

    def test_memory_does_not_grow_with_events(self, subscriber: Subscriber) -> None:
        """Requests, models and workers come and go for months; what is kept of them is bounded."""
        callbacks = list(subscriber.subscriptions().items())

        def feed(first: int, count: int) -> None:
            for number in range(first, first + count):
                for kind, callback in callbacks:
                    for event in _samples(kind, number):
                        callback(event)
                if number % BATCH_EVENTS == 0:
                    subscriber.batch_done()
            gc.collect()

        logging.disable()  # test runners keep every record
        try:
            tracemalloc.start()  # from the start on: what takes the place of what was forgotten is no growth
            feed(0, WARM_EVENTS)
            sizes = []
            for sample in range(2 * _SAMPLES):
                feed(WARM_EVENTS + sample * MEMORY_EVENTS, MEMORY_EVENTS)
                sizes.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
            logging.disable(logging.NOTSET)
        # what fills up and is emptied again and again has both sizes in both halves; what only grows has not
        grown = min(sizes[_SAMPLES:]) - max(sizes[:_SAMPLES])
        limit = MEMORY_EVENTS * EVENT_BYTES_MAX
        assert grown < limit, f"{grown} bytes more after {MEMORY_EVENTS} further events of each type"


@cache
def _makers(kind: type[Event]) -> tuple[tuple[type[Event], tuple[tuple[str, Any], ...]], ...]:
    """This type and each below it, with the names and types of their fields."""
    fields = {each: msgspec.structs.fields(each) for each in (kind, *_below(kind))}
    return tuple((each, tuple((field.name, field.type) for field in own)) for each, own in fields.items() if own)


def _below(kind: type[Event]) -> list[type[Event]]:
    return [found for each in kind.__subclasses__() for found in (each, *_below(each))]


def _samples(kind: type[Event], number: int = 1) -> list[Event]:
    """One event of this type and of each below it, with fields that follow from `number`."""
    values: dict[Any, Any] = {
        str: f"name-{number}",
        int: number,
        float: float(number),
        bool: bool(number % 2),
        int | None: number if number % 2 else None,
        str | None: f"name-{number}" if number % 2 else None,
        bytes: number.to_bytes(32, "big"),
    }
    return [each(**{name: values[of] for name, of in fields}) for each, fields in _makers(kind)]
