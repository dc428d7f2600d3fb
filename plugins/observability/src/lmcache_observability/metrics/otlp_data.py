"""Metrics in OpenTelemetry's data model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from opentelemetry.sdk.metrics import Exemplar as OtelExemplar
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from lmcache_observability import __version__
from lmcache_observability.metrics.metric_kind import (
    Distribution,
    Exemplar,
    Family,
    LabelValues,
    MetricKind,
    MetricType,
)

_SCOPE: Final = InstrumentationScope("lmcache_observability", __version__)
_SECOND: Final = 1_000_000_000


def metrics_data(families: Sequence[Family], resource: Resource, started: float) -> MetricsData:
    """All metrics that have a value, of this moment, cumulated since `started` (seconds since the epoch)."""
    begin, now = int(started * _SECOND), time.time_ns()
    metrics = [_metric(family, begin, now) for family in families if family.numbers or family.distributions]
    scope = ScopeMetrics(_SCOPE, metrics, schema_url="")
    return MetricsData([ResourceMetrics(resource, [scope], schema_url=resource.schema_url)])


def _metric(family: Family, begin: int, now: int) -> Metric:
    kind = family.kind
    data: Sum | Gauge | Histogram
    if kind.type is MetricType.HISTOGRAM:
        points = [_distribution(kind, labels, value, begin, now) for labels, value in family.distributions]
        data = Histogram(points, AggregationTemporality.CUMULATIVE)
    else:
        # +True is 1, which the encoder wants
        numbers = [NumberDataPoint(_attributes(kind, labels), begin, now, +value) for labels, value in family.numbers]
        is_counter = kind.type is MetricType.COUNTER
        data = Sum(numbers, AggregationTemporality.CUMULATIVE, is_monotonic=True) if is_counter else Gauge(numbers)
    return Metric(kind.name, kind.description, kind.unit, data)


def _distribution(
    kind: MetricKind, labels: LabelValues, distribution: Distribution, begin: int, now: int
) -> HistogramDataPoint:
    return HistogramDataPoint(
        attributes=_attributes(kind, labels),
        start_time_unix_nano=begin,
        time_unix_nano=now,
        count=sum(distribution.counts),
        sum=distribution.sum,
        bucket_counts=distribution.counts,
        explicit_bounds=kind.bounds,
        min=distribution.min,
        max=distribution.max,
        exemplars=[_exemplar(each) for each in distribution.exemplars.values()],
    )


def _exemplar(exemplar: Exemplar) -> OtelExemplar:
    # the exporter leaves out the trace where there is no span; 0 is none
    return OtelExemplar({}, exemplar.value, int(exemplar.at * _SECOND), span_id=0, trace_id=exemplar.trace_id)


def _attributes(kind: MetricKind, labels: LabelValues) -> dict[str, str]:
    return dict(zip(kind.labels, labels, strict=True))
