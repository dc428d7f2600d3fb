"""Metrics pushed to an OTLP/HTTP collector every few seconds.

The exporter is OpenTelemetry's, so that its variables for headers, certificates and compression hold here, too.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import MetricExportResult
from opentelemetry.sdk.resources import Resource

from lmcache_observability.collector_session import collector_session
from lmcache_observability.metrics.metric_kind import Family
from lmcache_observability.metrics.otlp_data import metrics_data
from lmcache_observability.otlp_url import otlp_url

logger = logging.getLogger(__name__)

_POINTS_PER_REQUEST: Final = 10_000
_LOG_EVERY: Final = 40
"""Pushes that fail one after the other are logged once per this many."""
_REASON_MAX: Final = 300
_EXPORTER_LOGGER: Final = "opentelemetry.exporter.otlp.proto.http.metric_exporter"


class OtlpPush:
    """A thread of its own, so that a hanging collector delays no other thread."""

    def __init__(self, endpoint: str, interval_seconds: float, timeout_seconds: float) -> None:
        self._endpoint = otlp_url(endpoint, "metrics")
        self._interval = interval_seconds
        self._timeout = timeout_seconds
        self._exporter = OTLPMetricExporter(
            self._endpoint,
            timeout=timeout_seconds,
            max_export_batch_size=_POINTS_PER_REQUEST,
            session=collector_session(),
        )
        self._families: Callable[[], Sequence[Family]] = list
        self._resource = Resource({})
        self._started = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics-push", daemon=True)
        self._complaints = _Complaints()
        self._failures_in_a_row = 0
        self.pushes: Counter[str] = Counter({"ok": 0, "failed": 0})

    def start(self, families: Callable[[], Sequence[Family]], target: Mapping[str, str]) -> None:
        self._families, self._started = families, time.time()
        self._resource = Resource.create(dict(target))
        logging.getLogger(_EXPORTER_LOGGER).addFilter(self._complaints)
        self._thread.start()

    def close(self) -> None:
        """Push once more, and wait for that no longer than the collector may take."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(self._timeout + 1.0)
        self._exporter.shutdown()
        logging.getLogger(_EXPORTER_LOGGER).removeFilter(self._complaints)

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            self._push()
        self._push()

    def _push(self) -> None:
        reason = self._fault()
        self.pushes["ok" if reason is None else "failed"] += 1
        if reason is None:
            if self._failures_in_a_row:
                logger.info("metrics are pushed again endpoint=%s", self._endpoint)
            self._failures_in_a_row = 0
            return
        self._failures_in_a_row += 1
        if self._failures_in_a_row % _LOG_EVERY == 1:
            failures = self._failures_in_a_row
            logger.warning("metrics are not pushed endpoint=%s failures=%d: %s", self._endpoint, failures, reason)

    def _fault(self) -> str | None:
        """Push; None when the collector took it."""
        try:
            data = metrics_data(self._families(), self._resource, self._started)
            if self._exporter.export(data) is MetricExportResult.SUCCESS:
                return None
            return self._complaints.take()[:_REASON_MAX]
        except Exception as error:  # noqa: BLE001  # another library's, or the server's; the next push may be fine
            return f"{type(error).__name__}: {error}"


class _Complaints(logging.Filter):
    """The exporter writes several lines for each push that fails; ours says the last of them once in a while."""

    def __init__(self) -> None:
        super().__init__()
        self._last = ""

    def filter(self, record: logging.LogRecord) -> bool:
        self._last = record.getMessage()
        return False

    def take(self) -> str:
        last, self._last = self._last, ""
        return last
