"""What a metric is, and its values at one moment, before they are written down in any format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

LabelValues = tuple[str, ...]


class MetricType(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class MetricKind:
    """`name` and `unit` as OpenTelemetry has them."""

    name: str
    unit: str
    description: str
    type: MetricType
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    """Of a histogram: the upper ends of its buckets, which belong to them, without the last one's."""


class Exemplar(NamedTuple):
    """One measurement of a bucket, and the trace of the request that it is from."""

    value: float
    at: float
    """Seconds since the epoch."""
    trace_id: int


class Distribution(NamedTuple):
    """`counts` has one number for each bucket, which are not cumulated; `exemplars` are by the index of the bucket."""

    counts: tuple[int, ...]
    sum: float
    min: float
    max: float
    exemplars: Mapping[int, Exemplar]


class Family(NamedTuple):
    """A metric and all its values, each with other labels: numbers of a counter or gauge, distributions of a histogram."""

    kind: MetricKind
    numbers: Sequence[tuple[LabelValues, float]] = ()
    distributions: Sequence[tuple[LabelValues, Distribution]] = ()
