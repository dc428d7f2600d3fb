"""Whatever happens to a queue, each of its events is delivered, dropped or waiting, once."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from core.tests.events.listeners import WAIT_SECONDS, bus_of
from lmcache_core.contracts.events import ChunksEvicted, Event, LeasesExpired, StoresDropped
from lmcache_core.contracts.subscriber import Subscriber, Subscriptions
from lmcache_devkit.fake_server_view import FakeServerView

NAMES = ("all", "some")
WANTED: dict[str, tuple[type[Event], ...]] = {"all": (Event,), "some": (LeasesExpired, StoresDropped)}
EVENTS: tuple[Event, ...] = (LeasesExpired(1, 0), StoresDropped("fs", 1, 1, "full"), ChunksEvicted(1, 1, 0.5))


class ScriptedSubscriber(Subscriber):
    def __init__(self, kinds: tuple[type[Event], ...]) -> None:
        self.kinds = kinds
        self.raises = False
        self.called = self.failed = self.closed = 0

    def subscriptions(self) -> Subscriptions:
        return dict.fromkeys(self.kinds, self.hear)

    def begin(self, server: object) -> None:
        self.fail_perhaps()

    def hear(self, event: Event) -> None:
        self.called += 1
        self.fail_perhaps()

    def close(self) -> None:
        self.closed += 1

    def fail_perhaps(self) -> None:
        if self.raises:
            self.failed += 1
            raise ValueError("scripted")


class BusMachine(RuleBasedStateMachine):
    """The queues' steps are made one by one, as their threads would."""

    @initialize(capacity=st.integers(1, 6))
    def open(self, capacity: int) -> None:
        self.capacity = capacity
        self.subscribers = {name: ScriptedSubscriber(WANTED[name]) for name in NAMES}
        self.bus = bus_of(self.subscribers, capacity)
        self.published: Counter[str] = Counter()
        self.bus.begin(FakeServerView())
        self.opened: dict[str, bool] = {}
        self.closed = False

    @rule(event=st.sampled_from(EVENTS), times=st.integers(1, 4))
    def publish(self, event: Event, times: int) -> None:
        for _ in range(times):
            for name in NAMES:
                self.published[name] += self.bus.queue_of(name).wants(type(event))
            self.bus.publish(event)

    @rule(name=st.sampled_from(NAMES), raises=st.booleans())
    def change_mood(self, name: str, raises: bool) -> None:
        self.subscribers[name].raises = raises

    @precondition(lambda self: not self.closed)
    @rule(name=st.sampled_from(NAMES))
    def deliver(self, name: str) -> None:
        queue = self.bus.queue_of(name)
        if name not in self.opened:
            self.opened[name] = queue._open()
        if self.opened[name]:
            queue._deliver()
            assert not queue.events

    @precondition(lambda self: not self.closed)
    @rule()
    def close(self) -> None:
        assert self.bus.close(WAIT_SECONDS)
        self.closed = True
        assert [subscriber.closed for subscriber in self.subscribers.values()] == [1, 1]

    @precondition(lambda self: not self.closed)
    @rule(name=st.sampled_from(NAMES))
    def abandon(self, name: str) -> None:
        """As a close does with one that hangs; its thread comes back afterwards."""
        self.bus.queue_of(name).abandon()
        self.closed = True

    @invariant()
    def every_event_is_somewhere(self) -> None:
        for name, status in self.bus.counters().subscribers.items():
            assert status.delivered + sum(status.dropped.values()) + status.waiting == self.published[name]
            assert status.waiting <= self.capacity
            assert (status.delivered, status.failed) == (self.subscribers[name].called, self.subscribers[name].failed)


TestBusMachine = BusMachine.TestCase
TestBusMachine.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
