"""Span records to an OTLP/HTTP collector, by OpenTelemetry's own encoding and exporter.

Spans are made as they are stored, and not by a tracer: their times, ids and parents are known.  No global provider is
touched, so that whatever else runs in the process keeps its own.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from lmcache_core import ServerInfo
from lmcache_observability import __version__
from lmcache_observability.collector_session import collector_session
from lmcache_observability.otlp_url import otlp_url
from lmcache_observability.tracing.settings import TracingSettings
from lmcache_observability.tracing.span_record import REQUEST, SpanRecord

logger = logging.getLogger(__name__)

_SCOPE: Final = InstrumentationScope("lmcache_observability.tracing", __version__)
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_UNSET: Final = Status(StatusCode.UNSET)
_BATCH_SPANS: Final = 512
_INT_MAX: Final = 2**63 - 1
_TEXT_CHARS_MAX: Final = 512
_SECONDS_MAX: Final = 2.0**33
"""Later than any clock; more nanoseconds than this do not fit the format."""
_LOG_SECONDS: Final = 60.0
_EXPORTER_LOGGER: Final = "opentelemetry.exporter.otlp.proto.http.trace_exporter"


class OtlpSpans:
    """A sink of spans with a thread of its own, so that a hanging collector delays no other thread.

    `send` only appends.  Spans that the queue has no room for, and those that the collector does not take, are counted."""

    def __init__(self, settings: TracingSettings, server: ServerInfo, exporter: SpanExporter | None = None) -> None:
        """`exporter` None: the one for the endpoint of the settings."""
        url = otlp_url(settings.otlp_endpoint, "traces")
        self._timeout = settings.export_timeout_seconds
        self._exporter = exporter or OTLPSpanExporter(
            url, timeout=self._timeout, session=collector_session(), meter_provider=NoOpMeterProvider()
        )
        self._delay = settings.export_delay_seconds
        self._queue: deque[SpanRecord] = deque()
        self._room = settings.export_queue_spans
        self._resource = Resource(
            {
                "service.name": "lmcache",
                "service.version": server.version,
                "service.instance.id": server.instance_id,
                "lmcache.boot_id": server.boot_id,
            }
        )
        self._logged_at = float("-inf")
        self._logged_lost = 0
        self._stop = threading.Event()
        self.dropped_spans = 0
        """There was no room for them."""
        self.failed_spans = 0
        """The collector did not take them."""
        logging.getLogger(_EXPORTER_LOGGER).addFilter(_is_not_routine)
        self._thread = threading.Thread(target=self._run, name="spans-push", daemon=True)
        self._thread.start()

    def send(self, spans: Sequence[SpanRecord]) -> None:
        room = max(0, self._room - len(self._queue))
        self._queue.extend(spans[:room])
        self.dropped_spans += max(0, len(spans) - room)

    def close(self) -> None:
        """What waits is sent within the time that the collector has for one batch."""
        if self._stop.is_set():
            return
        self._stop.set()
        self._thread.join(self._timeout + 1.0)
        self._exporter.shutdown()
        logging.getLogger(_EXPORTER_LOGGER).removeFilter(_is_not_routine)

    def _run(self) -> None:
        while not self._stop.wait(self._delay):
            self._push_all(math.inf)
        self._push_all(time.monotonic() + self._timeout)

    def _push_all(self, deadline: float) -> None:
        while self._queue and time.monotonic() < deadline:
            count = min(_BATCH_SPANS, len(self._queue))
            self._push([self._queue.popleft() for _ in range(count)])
        if lost := self.dropped_spans + self.failed_spans + (len(self._queue) if self._stop.is_set() else 0):
            self._tell(lost)

    def _push(self, spans: Sequence[SpanRecord]) -> None:
        try:
            taken = self._exporter.export([readable(span, self._resource) for span in spans])
        except Exception as error:  # noqa: BLE001  # another library's; the next batch may be fine
            logger.debug("spans are not pushed: %s: %s", type(error).__name__, error)
            taken = SpanExportResult.FAILURE
        if taken is not SpanExportResult.SUCCESS:
            self.failed_spans += len(spans)

    def _tell(self, lost: int) -> None:
        """Now and then, and not for each batch."""
        if lost != self._logged_lost and time.monotonic() - self._logged_at > _LOG_SECONDS:
            self._logged_at, self._logged_lost = time.monotonic(), lost
            logger.warning(
                "spans are lost failed=%d dropped=%d; is the collector there?", self.failed_spans, self.dropped_spans
            )


def readable(span: SpanRecord, resource: Resource) -> ReadableSpan:
    """Whatever the record says, the result can be encoded."""
    step = span.step
    context = SpanContext(span.trace_id, span.span_id, False, _SAMPLED)
    parent = None
    if span.parent_id is not None:
        parent = SpanContext(span.trace_id, span.parent_id, span.parent_is_remote, _SAMPLED)
    kind = SpanKind.SERVER if step.name == REQUEST else SpanKind.CLIENT if step.remote else SpanKind.INTERNAL
    return ReadableSpan(
        step.name,
        context=context,
        parent=parent,
        resource=resource,
        attributes=_encodable(step.attributes),
        kind=kind,
        status=Status(StatusCode.ERROR, _text(step.fault)) if step.fault else _UNSET,
        start_time=_nanoseconds(step.begin),
        end_time=_nanoseconds(step.end),
        instrumentation_scope=_SCOPE,
    )


def _encodable(attributes: Mapping[str, str | int | float | bool]) -> dict[str, str | int | float | bool]:
    return {_text(name): _fitting(value) for name, value in attributes.items()}


def _fitting(value: str | int | float | bool) -> str | int | float | bool:
    if isinstance(value, str):
        return _text(value)
    return max(-_INT_MAX, min(value, _INT_MAX)) if isinstance(value, int) else value


def _text(text: str) -> str:
    return text[:_TEXT_CHARS_MAX].encode(errors="replace").decode()


def _is_not_routine(record: logging.LogRecord) -> bool:
    """The exporter writes several lines for each batch that fails; ours says it now and then."""
    return record.levelno >= logging.CRITICAL


def _nanoseconds(seconds: float) -> int:
    return int(min(max(0.0, seconds), _SECONDS_MAX) * 1e9)  # 0 where it is not a number
