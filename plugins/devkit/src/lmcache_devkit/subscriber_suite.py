"""The requirements of a subscriber, as tests.  A distribution runs them with two lines:

class TestAcme(SubscriberSuite):
    offer = "acme"
"""

from __future__ import annotations

import gc
import logging
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
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
from lmcache_core.events.subscriber_calls import AskedSubscriber
from lmcache_core.events.subscriber_queue import QueueLimits
from lmcache_devkit.check_limit import CheckLimit, check_seconds
from lmcache_devkit.fake_server_view import FakeServerView
from lmcache_devkit.fuzzing import FUZZ
from lmcache_devkit.offer_under_test import OfferSuite, OpenableOffer

WARM_EVENTS = 10_000
"""Number of names a subscriber may remember before it has to forget."""
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
HASH_BYTES = 32
_HASHES = st.integers(0, 3).flatmap(lambda count: st.binary(min_size=HASH_BYTES * count, max_size=HASH_BYTES * count))
CALL_SECONDS = 5.0
"""After one second, a server says that a subscriber is stuck."""
THREAD_SECONDS = 2.0
"""How long threads may outlive `close`; a server waits as long for all subscribers together."""


class SubscriberSuite(OfferSuite):
    """Set `offer`; override `events_of` where it subscribes to events of your own with fields of other types."""

    kind: ClassVar[str] = "subscriber"

    def events_of(self, kind: type[Event]) -> SearchStrategy[Event]:
        """Events of this type, or of those that core publishes where it is the root of them all."""
        return st.one_of(
            [st.builds(each, **{name: _values(name, of) for name, of in fields}) for each, fields in _makers(kind)]
        )

    @pytest.fixture
    def subscriber(self, under_test: OpenableOffer) -> Iterator[Subscriber]:
        """Opened, and given a server as by a real one."""
        subscriber = under_test.open()
        with in_time("begin"):
            subscriber.begin(FakeServerView())
        yield subscriber
        with in_time("close"):
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
            event = data.draw(self.events_of(kind), label=kind.__name__)
            with in_time(f"the function for {kind.__name__}"):
                callback(event)
        with in_time("batch_done"):
            subscriber.batch_done()

    def test_every_documented_value_is_taken(self, subscriber: Subscriber) -> None:
        """Each `reason`, `outcome` and `origin` that an event may have (events.md)."""
        for kind, callback in subscriber.subscriptions().items():
            for event in _documented(kind):
                try:
                    with in_time(f"the function for {kind.__name__}"):
                        callback(event)
                except Exception as error:
                    raise AssertionError(f"{type(error).__name__}: {error} for {event}") from error
        with in_time("batch_done"):
            subscriber.batch_done()
        with in_time("batch_done without events"):  # as every few seconds while none come
            subscriber.batch_done()

    def test_no_call_blocks(self, subscriber: Subscriber) -> None:
        """What takes long belongs on a thread of its own: events that come meanwhile are dropped."""
        for kind, callback in subscriber.subscriptions().items():
            for event in _samples(kind):
                with in_time(f"the function for {kind.__name__}"):
                    callback(event)
        with in_time("batch_done"):
            subscriber.batch_done()

    def test_close_ends_what_it_began(self, under_test: OpenableOffer) -> None:
        """Its threads, too: what they hold on to would stay with the server."""
        before = set(threading.enumerate())
        subscriber = under_test.open()
        with in_time("begin"):
            subscriber.begin(FakeServerView())
        self.test_no_call_blocks(subscriber)
        with in_time("close"):
            subscriber.close()
        end = time.monotonic() + THREAD_SECONDS
        while (left := set(threading.enumerate()) - before) and time.monotonic() < end:
            time.sleep(0.01)
        assert not left, f"threads that outlive close: {', '.join(sorted(thread.name for thread in left))}"

    def test_on_the_bus_nothing_fails_and_nothing_is_left(self, subscriber: Subscriber) -> None:
        """The bus counts what a subscriber raises; events published from several threads reach it on one."""
        asked = AskedSubscriber(subscriber, subscriber.subscriptions())
        bus = EventBus({"under test": asked}, QueueLimits(capacity=10_000))
        events = [event for kind in asked.subscriptions for event in _samples(kind)]

        def publish() -> None:
            for event in events:
                bus.publish(event)

        publishers = [threading.Thread(target=publish) for _ in range(4)]
        for thread in publishers:
            thread.start()
        for thread in publishers:
            thread.join()
        runners = [threading.Thread(target=run, daemon=True) for _, run in bus.threads()]
        for thread in runners:
            thread.start()
        assert bus.close(10.0), "it took more than ten seconds for a few events, or to close"
        for thread in runners:
            thread.join()
        counters = bus.counters()
        assert (counters.waiting, dict(counters.failed)) == (0, {})
        assert counters.delivered == 4 * len(events)

    @check_seconds(180)
    def test_memory_does_not_grow_with_events(self, subscriber: Subscriber) -> None:
        """Requests, models and workers come and go for months; what is kept of them is bounded."""
        callbacks = list(subscriber.subscriptions().items())

        def feed(first: int, count: int) -> None:
            for number in range(first, first + count):
                for kind, callback in callbacks:
                    for event in _samples(kind, number):
                        callback(event)
                if number % BATCH_EVENTS == 0:
                    with in_time("batch_done"):
                        subscriber.batch_done()
            gc.collect()

        logging.disable()  # test runners keep every record
        try:
            tracemalloc.start()  # from the start on: what takes the place of what was forgotten is not growth
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


def in_time(call: str) -> AbstractContextManager[None]:
    """Interrupts one call of the subscriber that does not come back."""
    return CheckLimit().limit(CALL_SECONDS, f"{call}, where nothing may block: it")


def _values(name: str, of: Any) -> SearchStrategy[Any]:
    if known := _known(of):
        return st.sampled_from(known)
    return _HASHES if of is bytes and name.endswith("hashes") else _FIELDS[of]


def _known(of: Any) -> list[str]:
    """The values that this field is documented to have."""
    return [value for meta in getattr(of, "__metadata__", ()) for value in meta.examples or ()]


def _documented(kind: type[Event]) -> list[Event]:
    """For each value that a field of this type or one below it may have, an event that has it."""
    found = []
    sample = _sampler(1)
    for each, fields in _makers(kind):
        plain = {name: sample(of) for name, of in fields}
        found += [each(**{**plain, name: value}) for name, of in fields for value in _known(of)]
    return found


@cache
def _makers(kind: type[Event]) -> tuple[tuple[type[Event], tuple[tuple[str, Any], ...]], ...]:
    """This type and each below it, with the names and types of their fields."""
    fields = {each: msgspec.structs.fields(each) for each in (kind, *_below(kind))}
    return tuple((each, tuple((field.name, field.type) for field in own)) for each, own in fields.items() if own)


def _below(kind: type[Event]) -> list[type[Event]]:
    return [found for each in kind.__subclasses__() for found in (each, *_below(each))]


def _samples(kind: type[Event], number: int = 1) -> list[Event]:
    """One event of this type and of each below it, with fields that follow from `number`."""
    sample = _sampler(number)
    return [each(**{name: sample(of) for name, of in fields}) for each, fields in _makers(kind)]


def _sampler(number: int) -> Callable[[Any], Any]:
    values: dict[Any, Any] = {
        str: f"name-{number}",
        int: number,
        float: float(number),
        bool: bool(number % 2),
        int | None: number if number % 2 else None,
        str | None: f"name-{number}" if number % 2 else None,
        bytes: number.to_bytes(HASH_BYTES, "big"),
    }

    def sample(of: Any) -> Any:
        if of in values:
            return values[of]
        known = _known(of)
        return known[number % len(known)]

    return sample
