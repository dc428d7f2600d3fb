"""Metric samples: values of the server's counters, gauges and histograms, read where they are kept.

Samples are exact; events can be dropped.  A metrics exporter takes totals from samples, and only what needs single events
from events.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from operator import add
from typing import Final, NamedTuple

import msgspec


class Histogram(NamedTuple):
    """Measurements by bucket: `counts` has one number for each bucket, not cumulated; `sum`, `min` and `max` are of the
    measured values."""

    counts: tuple[int, ...]
    sum: float
    min: float
    max: float


class Sample(NamedTuple):
    """One value of one metric.  `labels` are the values of its kind's labels, in their order.  The value of a histogram is its
    number of measurements."""

    name: str
    value: float
    labels: tuple[str, ...] = ()
    histogram: Histogram | None = None


class SampleKind(msgspec.Struct, frozen=True):
    """One metric.  `name` and `unit` follow OpenTelemetry's conventions (units by UCUM, such as `By`, `s`, `{chunk}`),
    but where the public server has a metric of the same meaning: then they are its own, prefix `lmcache_mp` included."""

    name: str
    unit: str
    description: str
    is_counter: bool
    """A counter only grows while the server runs; anything else is a gauge."""
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    """The inclusive upper ends of a histogram's buckets, without the last one's; empty for counters and gauges."""

    def of(self, value: float, *labels: str) -> Sample:
        """A sample, with one label value for each label."""
        assert len(labels) == len(self.labels), f"{self.name} has the labels {self.labels}, not {labels}"
        return Sample(self.name, value, labels)

    def histogram_of(self, histogram: Histogram, *labels: str) -> Sample:
        """A sample of a histogram."""
        assert len(histogram.counts) == len(self.bounds) + 1, f"{self.name} has {len(self.bounds) + 1} buckets"
        return self.of(sum(histogram.counts), *labels)._replace(histogram=histogram)


BOUNDS_SECONDS: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
"""Inclusive upper ends of the buckets, without the last one's."""


class Durations:
    """A histogram of durations, counted exactly.  Not thread-safe: the owner holds a lock."""

    __slots__ = ("_counts", "_least", "_most", "_seconds", "total")

    def __init__(self) -> None:
        self.total = 0
        """How many there were."""
        self._counts = [0] * (len(BOUNDS_SECONDS) + 1)
        self._seconds, self._least, self._most = 0.0, math.inf, 0.0

    def count(self, seconds: float) -> None:
        self.total += 1
        self._counts[bisect_left(BOUNDS_SECONDS, seconds)] += 1
        self._seconds += seconds
        if seconds < self._least:
            self._least = seconds
        if seconds > self._most:
            self._most = seconds

    def add(self, other: Durations) -> None:
        """Count what the other one counts, too."""
        self.total += other.total
        self._counts = list(map(add, self._counts, other._counts))
        self._seconds += other._seconds
        self._least, self._most = min(self._least, other._least), max(self._most, other._most)

    def histogram(self) -> Histogram:
        return Histogram(tuple(self._counts), self._seconds, self._least, self._most)
