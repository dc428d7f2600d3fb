"""The text that Prometheus reads, read back with its own client; and names, against OpenTelemetry's own exporter."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse_text

from lmcache_observability.metrics import block_life, chunk_kinds, distributions, own_gauges
from lmcache_observability.metrics.metric_kind import Distribution, Exemplar, Family, MetricKind, MetricType
from lmcache_observability.metrics.prometheus_name import prometheus_name
from lmcache_observability.metrics.prometheus_text import OPEN_METRICS, TEXT, exposition
from lmcache_observability.metrics.sample_families import metric_kind
from lmcache_observability.samples.catalogue import SAMPLE_KINDS

OPEN = "application/openmetrics-text; version=1.0.0, text/plain;q=0.5"
TARGET = {"service.name": "lmcache", "service.instance.id": "i"}
KINDS = (
    *map(metric_kind, SAMPLE_KINDS),
    *distributions.KINDS,
    *chunk_kinds.KINDS,
    *block_life.KINDS,
    *own_gauges.KINDS,
)
COUNTER = MetricKind("a.b", "chunks", "Counted", MetricType.COUNTER, ("cache_salt",))
GAUGE = MetricKind("c.d", "By", 'About "it" \\ and\nmore', MetricType.GAUGE, ("x.y",))
HISTOGRAM = MetricKind("e.f", "s", "Taken", MetricType.HISTOGRAM, ("m",), (0.1, 1.0, 10.0))


def parsed(families: Iterable[Family], accept: str = "") -> dict[str, Metric]:
    media_type, body = exposition(list(families), TARGET, accept)
    assert media_type == (OPEN_METRICS if accept else TEXT)
    parse = parse_open if accept else parse_text
    return {metric.name: metric for metric in parse(body.decode())}


@pytest.mark.parametrize("accept", ["", OPEN])
@given(
    values=st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"])), st.floats()), unique_by=lambda v: v[0])
)
def test_labels_and_numbers_survive(accept: str, values: list[tuple[str, float]]) -> None:
    found = parsed([Family(GAUGE, [((label,), value) for label, value in values])], accept)["c_d_bytes"]
    assert [sample.labels for sample in found.samples] == [{"x_y": label} for label, _ in values]
    for sample, (_, value) in zip(found.samples, values, strict=True):
        assert sample.value == value or (math.isnan(sample.value) and math.isnan(value))
    assert found.documentation == GAUGE.description


@pytest.mark.parametrize("accept", ["", OPEN])
def test_counters_and_what_describes_the_server(accept: str) -> None:
    found = parsed([Family(COUNTER, [(("s",), 3)])], accept)
    (sample,) = found["a_b_chunks"].samples
    assert (sample.name, sample.labels, sample.value) == ("a_b_chunks_total", {"cache_salt": "s"}, 3)
    assert found["a_b_chunks"].type == "counter"
    (target,) = found["target" if accept else "target_info"].samples
    assert target.labels == {"service_name": "lmcache", "service_instance_id": "i"}


@pytest.mark.parametrize("accept", ["", OPEN])
def test_buckets_add_up_and_exemplars_are_for_who_asks(accept: str) -> None:
    distribution = Distribution((1, 0, 2, 1), 15.5, 0.05, 11.0, {2: Exemplar(4.0, 12.5, 0xABC)})
    found = parsed([Family(HISTOGRAM, distributions=[(("m",), distribution)])], accept)["e_f_seconds"]
    buckets = {sample.labels["le"]: sample for sample in found.samples if sample.name.endswith("_bucket")}
    assert {end: sample.value for end, sample in buckets.items()} == {"0.1": 1, "1.0": 1, "10.0": 3, "+Inf": 4}
    others = {sample.name: sample.value for sample in found.samples if "le" not in sample.labels}
    assert others == {"e_f_seconds_sum": 15.5, "e_f_seconds_count": 4}
    exemplar = buckets["10.0"].exemplar
    if accept:
        assert exemplar
        assert exemplar.timestamp is not None
        assert (exemplar.labels, exemplar.value, float(exemplar.timestamp)) == (
            {"trace_id": f"{0xABC:032x}"},
            4.0,
            12.5,
        )
    else:
        assert exemplar is None


def test_names_are_those_of_opentelemetry_s_exporter() -> None:
    registry = CollectorRegistry()
    reader = PrometheusMetricReader(registry=registry)
    provider = MeterProvider([reader])
    meter = provider.get_meter("test")
    for kind in KINDS:
        match kind.type:
            case MetricType.COUNTER:
                meter.create_counter(kind.name, kind.unit).add(1)
            case MetricType.GAUGE:
                meter.create_gauge(kind.name, kind.unit).set(1)
            case MetricType.HISTOGRAM:
                meter.create_histogram(kind.name, kind.unit).record(1)
    theirs = {metric.name: metric.type for metric in parse_text(generate_latest(registry).decode())}
    provider.shutdown()
    del theirs["target_info"]
    assert {prometheus_name(kind): kind.type.value for kind in KINDS} == theirs


def test_no_two_metrics_have_one_name() -> None:
    names = [prometheus_name(kind) for kind in KINDS]
    assert sorted({name for name in names if names.count(name) > 1}) == []
    samples = [
        f"{name}_total" if kind.type is MetricType.COUNTER else name for name, kind in zip(names, KINDS, strict=True)
    ]
    assert len(set(samples)) == len(KINDS)
