"""What is handed to the exporter can always be encoded, and a collector that is down costs nothing but the spans."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from lmcache_observability.tracing.otlp_spans import OtlpSpans, readable
from lmcache_observability.tracing.settings import TracingSettings
from lmcache_observability.tracing.span_record import SpanRecord, new_root, spans_of
from lmcache_observability.tracing.steps import Step, step_of
from plugins.observability.tests.server_stand_in import ServerStandIn
from plugins.observability.tests.tracing.stand_ins import loaded, looked_up

RESOURCE = Resource({})


def spans() -> list[SpanRecord]:
    return spans_of(new_root(5), 7, {"lmcache.request_id": "r"}, [step_of(looked_up()), step_of(loaded(failed=1))], 9.0)


@given(
    st.dictionaries(st.text(max_size=20), st.text(st.characters()) | st.integers() | st.floats() | st.booleans()),
    st.floats(),
    st.floats(),
    st.text(st.characters(), max_size=900),
)
def test_whatever_a_span_says_can_be_encoded(
    attributes: dict[str, str | int | float | bool], begin: float, end: float, fault: str
) -> None:
    record = SpanRecord(2**128 - 1, 2**64 - 1, 1, True, Step("lmcache.x", begin, end, attributes, fault=fault))
    encoded = encode_spans([readable(record, RESOURCE)])
    assert encoded.resource_spans[0].scope_spans[0].spans[0].name == "lmcache.x"


def test_kinds_parents_and_faults_are_encoded() -> None:
    encoded = encode_spans([readable(span, RESOURCE) for span in spans()]).resource_spans[0].scope_spans[0].spans
    root, lookup, load = encoded
    assert [root.kind, lookup.kind, load.kind] == [
        root.SPAN_KIND_SERVER,
        root.SPAN_KIND_INTERNAL,
        root.SPAN_KIND_CLIENT,
    ]
    assert root.parent_span_id == (7).to_bytes(8, "big")
    assert lookup.parent_span_id == root.span_id
    assert load.parent_span_id == lookup.span_id
    assert load.status.message == "1 of 2 objects failed"
    assert load.end_time_unix_nano == pytest.approx(100.8e9)


class ExporterStandIn(SpanExporter):
    def __init__(self, result: SpanExportResult = SpanExportResult.SUCCESS) -> None:
        self.result = result
        self.batches: list[list[ReadableSpan]] = []
        self.gate = threading.Event()
        self.gate.set()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.gate.wait(10)
        self.batches.append(list(spans))
        return self.result


def sink(exporter: SpanExporter | None = None, **settings: float) -> OtlpSpans:
    given = {"otlp_endpoint": "http://127.0.0.1:1", "export_timeout_seconds": 0.5, **settings}
    return OtlpSpans(TracingSettings.model_validate(given), ServerStandIn.info, exporter)


def test_what_waits_at_the_end_is_sent() -> None:
    exporter = ExporterStandIn()
    pushed = sink(exporter, export_delay_seconds=60)
    for _ in range(400):
        pushed.send(spans())
    pushed.close()
    assert sum(map(len, exporter.batches)) == 1200
    assert max(map(len, exporter.batches)) <= 512
    assert pushed.dropped_spans == pushed.failed_spans == 0


def test_spans_beyond_the_queue_are_counted() -> None:
    exporter = ExporterStandIn()
    exporter.gate.clear()
    pushed = sink(exporter, export_queue_spans=5, export_delay_seconds=60)
    for _ in range(4):
        pushed.send(spans())
    assert pushed.dropped_spans == 7
    exporter.gate.set()
    pushed.close()
    assert sum(map(len, exporter.batches)) == 5


def test_a_collector_that_takes_nothing_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    pushed = sink(ExporterStandIn(SpanExportResult.FAILURE), export_delay_seconds=0.01)
    with caplog.at_level(logging.INFO):
        for count in range(1, 5):
            pushed.send(spans())
            wait_until(lambda count=count: pushed.failed_spans == 3 * count)  # type: ignore[misc]
        pushed.close()
    assert len(caplog.records) == 1


def test_an_exporter_that_raises_ends_nothing() -> None:
    class Raising(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            raise RuntimeError("planted")

    pushed = sink(Raising(), export_delay_seconds=0.01)
    for count in range(1, 4):
        pushed.send(spans())
        wait_until(lambda count=count: pushed.failed_spans == 3 * count)  # type: ignore[misc]
    pushed.close()


def test_no_collector_listens(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        pushed = sink()
        pushed.send(spans())
        pushed.close()
        pushed.close()
    assert pushed.failed_spans == 3
    assert [record.name.split(".")[0] for record in caplog.records] == ["lmcache_observability"]


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)
