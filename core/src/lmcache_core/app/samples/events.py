"""Samples of the event bus: what each subscriber got, and what it lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lmcache_core.contracts.samples import Sample, SampleKind
from lmcache_core.events.bus import BusCounters
from lmcache_core.events.lane_status import LaneStatus

_SUBSCRIBER: Final = ("subscriber_name",)

WAITING: Final = SampleKind(
    "lmcache_mp.event_bus.queue_depth", "", "Events that wait for a subscriber.", is_counter=False, labels=_SUBSCRIBER
)
LAG: Final = SampleKind(
    "lmcache_mp.event_bus.drain_lag_seconds",
    "",
    "How long the oldest event that waits for a subscriber has waited.",
    is_counter=False,
    labels=_SUBSCRIBER,
)
DROPPED: Final = SampleKind(
    "lmcache_mp.event_bus.dropped_events_total",
    "1",
    "Events that a subscriber was not given, because it was too far behind or had ended.",
    is_counter=True,
    labels=(*_SUBSCRIBER, "event"),
)
FAILED: Final = SampleKind(
    "lmcache_mp.event_bus.subscriber_exceptions",
    "1",
    "Times that a subscriber raised.",
    is_counter=True,
    labels=_SUBSCRIBER,
)
DELIVERED: Final = SampleKind(
    "lmcache.events.delivered", "{event}", "Events that a subscriber was given.", is_counter=True, labels=_SUBSCRIBER
)
CPU: Final = SampleKind(
    "lmcache.events.cpu.time", "s", "Processor time of a subscriber's thread.", is_counter=True, labels=_SUBSCRIBER
)
STATE: Final = SampleKind(
    "lmcache.events.subscribers",
    "{subscriber}",
    "Subscribers by state: ok, behind, stuck, failing, retaining or ended.",
    is_counter=False,
    labels=(*_SUBSCRIBER, "state"),
)

KINDS: Final = (WAITING, LAG, DROPPED, FAILED, DELIVERED, CPU, STATE)


def event_samples(counters: BusCounters) -> Iterator[Sample]:
    for name, lane in counters.lanes.items():
        yield from _lane(name, lane)


def _lane(name: str, lane: LaneStatus) -> Iterator[Sample]:
    yield WAITING.of(lane.waiting, name)
    yield LAG.of(lane.oldest_age_seconds, name)
    for event, count in lane.dropped.items():
        yield DROPPED.of(count, name, event)
    yield FAILED.of(lane.failed, name)
    yield DELIVERED.of(lane.delivered, name)
    yield CPU.of(lane.cpu_seconds, name)
    yield STATE.of(1, name, lane.state.value)
