"""What a collector receives, and what happens without one."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import pytest

from lmcache_observability.metrics import otlp_push
from lmcache_observability.metrics.metric_kind import Distribution, Exemplar, Family, MetricKind, MetricType
from lmcache_observability.metrics.otlp_push import OtlpPush
from tests.observability.otlp_collector import OtlpCollector

COUNTER = MetricKind("lmcache_mp.lookups", "requests", "Lookups", MetricType.COUNTER, ("model_name",))
GAUGE = MetricKind("lmcache.healthy", "1", "Health", MetricType.GAUGE)
HISTOGRAM = MetricKind("lmcache.lookup.duration", "s", "Taken", MetricType.HISTOGRAM, ("m",), (0.1, 1.0))
TAKEN = Distribution((1, 2, 0), 1.5, 0.1, 0.9, {1: Exemplar(0.9, 12.5, 0xABC)})
FAMILIES = [
    Family(COUNTER, [(("a",), 3), (("b",), 4)]),
    Family(GAUGE, [((), True)]),
    Family(HISTOGRAM, distributions=[(("x",), TAKEN)]),
]
TARGET = {"service.name": "lmcache", "service.instance.id": "i"}


@pytest.fixture
def collector() -> Iterator[OtlpCollector]:
    with OtlpCollector() as collector:
        yield collector


def test_a_collector_gets_everything(collector: OtlpCollector) -> None:
    push, began = OtlpPush(collector.endpoint, 0.05, 5.0), time.time_ns()
    push.start(lambda: FAMILIES, TARGET)
    collector.wait_for(lambda: len(collector.metric_requests) >= 2)
    push.close()
    (resource,) = collector.metric_requests[0].resource_metrics
    attributes = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert attributes.items() >= TARGET.items()
    assert resource.scope_metrics[0].scope.name == "lmcache_observability"
    found = collector.metrics()
    lookups = found["lmcache_mp.lookups"]
    assert (lookups.unit, lookups.description, lookups.sum.is_monotonic) == ("requests", "Lookups", True)
    assert lookups.sum.aggregation_temporality == 2
    points = {each.attributes[0].value.string_value: each for each in lookups.sum.data_points}
    assert {name: point.as_int for name, point in points.items()} == {"a": 3, "b": 4}
    assert began <= points["a"].start_time_unix_nano <= points["a"].time_unix_nano
    assert found["lmcache.healthy"].gauge.data_points[0].as_int == 1
    (point,) = found["lmcache.lookup.duration"].histogram.data_points
    assert (list(point.bucket_counts), list(point.explicit_bounds)) == ([1, 2, 0], [0.1, 1.0])
    assert (point.count, point.sum, point.min, point.max) == (3, 1.5, 0.1, 0.9)
    assert int.from_bytes(point.exemplars[0].trace_id, "big") == 0xABC
    assert push.pushes["ok"] >= 2


def test_the_last_push_is_at_the_end(collector: OtlpCollector) -> None:
    push = OtlpPush(collector.endpoint, 3600.0, 5.0)
    push.start(lambda: FAMILIES, TARGET)
    push.close()
    assert len(collector.metric_requests) == 1


def test_a_collector_that_is_down_is_said_once_in_a_while(
    collector: OtlpCollector, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp_push, "_LOG_EVERY", 1000)
    collector.status = 400
    with caplog.at_level(logging.INFO):
        push = OtlpPush(collector.endpoint, 0.02, 1.0)
        push.start(lambda: FAMILIES, TARGET)
        collector.wait_for(lambda: push.pushes["failed"] >= 4)
        collector.status = 200
        collector.wait_for(lambda: push.pushes["ok"] >= 1)
        push.close()
    said = [record.getMessage() for record in caplog.records]
    assert len([line for line in said if "metrics are not pushed" in line]) == 1
    assert len([line for line in said if "metrics are pushed again" in line]) == 1
    assert len(said) == 2, "the exporter's own lines are not written"


def test_no_server_at_the_address(caplog: pytest.LogCaptureFixture) -> None:
    with OtlpCollector() as gone:
        endpoint = gone.endpoint
    push = OtlpPush(endpoint, 0.02, 0.2)
    push.start(lambda: FAMILIES, TARGET)
    began = time.monotonic()
    while not push.pushes["failed"]:
        assert time.monotonic() < began + 20
        time.sleep(0.01)
    push.close()
    assert "metrics are not pushed" in caplog.text


def test_a_fault_in_what_is_pushed_is_not_the_end(collector: OtlpCollector, caplog: pytest.LogCaptureFixture) -> None:
    faults = [RuntimeError("injected")]

    def families() -> list[Family]:
        if faults:
            raise faults.pop()
        return FAMILIES

    push = OtlpPush(collector.endpoint, 0.02, 5.0)
    push.start(families, TARGET)
    collector.wait_for(lambda: push.pushes["ok"] >= 1)
    push.close()
    assert "RuntimeError: injected" in caplog.text
