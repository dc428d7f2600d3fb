"""A small OTLP/HTTP collector that keeps what it is sent."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class OtlpCollector:
    """On a free port of the loopback interface while it is entered.  `status` is what it answers with."""

    def __init__(self) -> None:
        self.status = 200
        self.requests = 0
        self.metric_requests: list[ExportMetricsServiceRequest] = []
        self.trace_requests: list[ExportTraceServiceRequest] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def metrics(self) -> dict[str, Metric]:
        """The last of each name."""
        return {
            metric.name: metric
            for request in self.metric_requests
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def spans(self) -> list[Span]:
        return [
            span
            for request in self.trace_requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def wait_for(self, condition: Callable[[], bool], seconds: float = 20.0) -> None:
        """Raises AssertionError when it does not come true in time."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"nothing came within {seconds} s"
            time.sleep(0.02)

    def take(self, path: str, body: bytes) -> None:
        self.requests += 1
        if self.status != 200:
            return
        if path == "/v1/metrics":
            self.metric_requests.append(ExportMetricsServiceRequest.FromString(body))
        elif path == "/v1/traces":
            self.trace_requests.append(ExportTraceServiceRequest.FromString(body))
        else:
            raise AssertionError(f"a collector has no {path}")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _handler(collector: OtlpCollector) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            collector.take(self.path, body)
            self.send_response(collector.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Tests are quiet."""

    return Handler
