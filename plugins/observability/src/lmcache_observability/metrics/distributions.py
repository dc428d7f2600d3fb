"""How long things take and how fast bytes move, from the events about each of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from lmcache_core import (
    ChunksRetrieved,
    ChunksStored,
    Event,
    L2LookupCompleted,
    LoadCompleted,
    LookupFinished,
    PrefetchCompleted,
    StoreCompleted,
    parse_model_name,
)
from lmcache_observability.metrics.block_life import BlockLife
from lmcache_observability.metrics.histogram import Histogram
from lmcache_observability.metrics.label_names import LabelNames
from lmcache_observability.metrics.metric_kind import Exemplar, Family, LabelValues, MetricKind, MetricType
from lmcache_observability.metrics.request_traces import RequestTraces

_GB: Final = 1e9
_SECONDS: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
_GB_PER_SECOND: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0)
_EXEMPLAR_SERIES_MAX: Final = 2048
"""Combinations of labels of which there are exemplars."""


def _seconds(name: str, description: str, *labels: str) -> MetricKind:
    return MetricKind(name, "s", description, MetricType.HISTOGRAM, labels, _SECONDS)


def _speed(name: str, description: str, *labels: str) -> MetricKind:
    return MetricKind(name, "GB/s", description, MetricType.HISTOGRAM, labels, _GB_PER_SECOND)


LOOKUP: Final = "lmcache.lookup.duration"
"""A sample of the server, with the labels `model_name` and `tier`."""
STORE: Final = _seconds("lmcache.store.duration", "How long a worker held slots of L1 to fill them", "model_name")
RETRIEVE: Final = _seconds("lmcache.retrieve.duration", "How long a worker held slots of L1 to read them", "model_name")
STORE_SPEED: Final = _speed("lmcache_mp.l0_l1_store_throughput", "Bytes over time of a worker's stores", "model_name")
RETRIEVE_SPEED: Final = _speed("lmcache_mp.l0_l1_load_throughput", "Bytes over time of a worker's reads", "model_name")
L2_STORE: Final = _seconds("lmcache.l2.store.duration", "How long an adapter took for a batch of stores", "l2_name")
L2_STORE_WAIT: Final = _seconds("lmcache.l2.store.wait", "How long a batch waited for its adapter before", "l2_name")
L2_STORE_SPEED: Final = _speed("lmcache_mp.l2_store_throughput", "Bytes over time of an adapter's stores", "l2_name")
L2_LOOKUP: Final = _seconds("lmcache.l2.lookup.duration", "How long an adapter took to say what it has", "l2_name")
L2_LOAD: Final = _seconds("lmcache.l2.load.duration", "How long an adapter took for a batch of loads", "l2_name")
L2_LOAD_SPEED: Final = _speed("lmcache_mp.l2_load_throughput", "Bytes over time of an adapter's loads", "l2_name")
PREFETCH: Final = _seconds("lmcache.prefetch.duration", "How long a lookup went on in L2")
KINDS: Final = (
    *(STORE, RETRIEVE, STORE_SPEED, RETRIEVE_SPEED),
    *(L2_STORE, L2_STORE_WAIT, L2_STORE_SPEED, L2_LOOKUP, L2_LOAD, L2_LOAD_SPEED, PREFETCH),
)


class _Exemplars:
    """Traces to point at from a histogram that the server counts: the latest one between two bounds.  Not thread-safe: the
    owner holds a lock."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._found: dict[LabelValues, dict[int, Exemplar]] = {}

    def add(self, labels: LabelValues, exemplar: Exemplar) -> None:
        if labels in self._found or len(self._found) < _EXEMPLAR_SERIES_MAX:
            self._found.setdefault(labels, {})[bisect_left(self._bounds, exemplar.value)] = exemplar

    def by_labels(self) -> Mapping[LabelValues, Sequence[Exemplar]]:
        return {labels: list(found.values()) for labels, found in self._found.items()}


class Distributions:
    """Not thread-safe: the owner holds a lock."""

    def __init__(self, labels: LabelNames, traces: RequestTraces) -> None:
        self._show = labels.show
        self._traces = traces
        self._lookups, self._prefetches = _Exemplars(_SECONDS), Histogram(PREFETCH)
        self._stores = _Transfers(Histogram(STORE), Histogram(STORE_SPEED))
        self._retrieves = _Transfers(Histogram(RETRIEVE), Histogram(RETRIEVE_SPEED))
        self._l2_stores = _Transfers(Histogram(L2_STORE), Histogram(L2_STORE_SPEED))
        self._l2_loads = _Transfers(Histogram(L2_LOAD), Histogram(L2_LOAD_SPEED))
        self._blocks = BlockLife(labels)
        self._l2_store_waits, self._l2_lookups = Histogram(L2_STORE_WAIT), Histogram(L2_LOOKUP)
        self.handlers: Mapping[type[Event], Callable[[Any], None]] = {
            LookupFinished: self._lookup,
            ChunksStored: self._store,
            ChunksRetrieved: self._retrieve,
            StoreCompleted: self._l2_store,
            L2LookupCompleted: self._l2_lookup,
            LoadCompleted: self._l2_load,
            PrefetchCompleted: self._prefetch,
            **self._blocks.handlers,
        }

    def families(self) -> list[Family]:
        plain = (self._prefetches, self._l2_store_waits, self._l2_lookups)
        moved = (self._stores, self._retrieves, self._l2_stores, self._l2_loads)
        of_events = [each.family() for each in (*plain, *(histogram for pair in moved for histogram in pair))]
        return of_events + self._blocks.families()

    def exemplars(self) -> dict[str, Mapping[LabelValues, Sequence[Exemplar]]]:
        """Of what the server counts itself, by the name of the measure."""
        return {LOOKUP: self._lookups.by_labels()}

    def _lookup(self, event: LookupFinished) -> None:
        if trace := self._traces.begin(event.request_id, event.trace_context):
            tier = "l2" if event.l2_chunks else "l1" if event.hit_chunks else "none"
            labels = (self._show("model_name", parse_model_name(event.model_name).served), tier)
            self._lookups.add(labels, Exemplar(event.seconds, event.at, trace))

    def _store(self, event: ChunksStored) -> None:
        labels = (self._show("model_name", parse_model_name(event.model_name).served),)
        self._stores.record(labels, event.payload_bytes, event.seconds, event.at, self._traces.of(event.request_id))

    def _retrieve(self, event: ChunksRetrieved) -> None:
        labels = (self._show("model_name", parse_model_name(event.model_name).served),)
        self._retrieves.record(labels, event.payload_bytes, event.seconds, event.at, self._traces.of(event.request_id))

    def _l2_store(self, event: StoreCompleted) -> None:
        labels, trace = (self._show("l2_name", event.adapter),), self._traces.of(event.request_id)
        self._l2_stores.record(labels, event.stored_bytes, event.seconds, event.at, trace)
        self._l2_store_waits.record(labels, event.waited_seconds, event.at, trace)

    def _l2_lookup(self, event: L2LookupCompleted) -> None:
        labels = (self._show("l2_name", event.adapter),)
        self._l2_lookups.record(labels, event.seconds, event.at, self._traces.of(event.request_id))

    def _l2_load(self, event: LoadCompleted) -> None:
        labels = (self._show("l2_name", event.adapter),)
        self._l2_loads.record(labels, event.loaded_bytes, event.seconds, event.at, self._traces.of(event.request_id))

    def _prefetch(self, event: PrefetchCompleted) -> None:
        self._prefetches.record((), event.seconds, event.at, self._traces.of(event.request_id))


class _Transfers(NamedTuple):
    """How long moves of bytes took, and how fast they were."""

    took: Histogram
    speed: Histogram

    def record(self, labels: LabelValues, moved_bytes: int, seconds: float, at: float, trace: int) -> None:
        self.took.record(labels, seconds, at, trace)
        if moved_bytes > 0 and seconds > 0:
            self.speed.record(labels, moved_bytes / seconds / _GB, at, trace)
