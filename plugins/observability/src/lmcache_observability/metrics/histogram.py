"""Distributions, counted in plain lists: an instrument of a metrics library costs several times as much per event."""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import Final

from lmcache_observability.metrics.label_names import OTHER
from lmcache_observability.metrics.metric_kind import Distribution, Exemplar, Family, LabelValues, MetricKind

SERIES_MAX: Final = 2048
"""Combinations of labels that are counted apart; those that come later are counted as one."""


class Histogram:
    """Not thread-safe: the owner holds a lock."""

    def __init__(self, kind: MetricKind) -> None:
        self._kind = kind
        self._bounds = kind.bounds
        self._series: dict[LabelValues, _Series] = {}

    def record(self, labels: LabelValues, value: float, at: float = 0.0, trace_id: int = 0) -> None:
        """Count one measurement; with a `trace_id` it becomes the exemplar of its bucket."""
        series = self._series.get(labels)
        if series is None:
            series = self._new(labels)
        bucket = bisect_left(self._bounds, value)
        series.counts[bucket] += 1
        series.sum += value
        if value < series.min:
            series.min = value
        if value > series.max:
            series.max = value
        if trace_id:
            series.exemplars[bucket] = Exemplar(value, at, trace_id)

    def family(self) -> Family:
        found = [
            (labels, Distribution(tuple(series.counts), series.sum, series.min, series.max, dict(series.exemplars)))
            for labels, series in self._series.items()
        ]
        return Family(self._kind, distributions=found)

    def _new(self, labels: LabelValues) -> _Series:
        if len(self._series) >= SERIES_MAX:
            labels = (OTHER,) * len(labels)
        return self._series.setdefault(labels, _Series(len(self._bounds) + 1))


class _Series:
    __slots__ = ("counts", "exemplars", "max", "min", "sum")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * buckets
        self.sum, self.min, self.max = 0.0, math.inf, -math.inf
        self.exemplars: dict[int, Exemplar] = {}
