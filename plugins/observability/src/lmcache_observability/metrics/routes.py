"""`GET /metrics` of the admin API."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core import HttpAnswer, HttpContext, HttpRefusal, HttpRequest, HttpRoute
from lmcache_observability.metrics.prometheus_text import TEXT
from lmcache_observability.metrics.subscriber import MetricsSubscriber


def open_metrics_routes(settings: None, context: HttpContext) -> Sequence[HttpRoute]:
    def answer(request: HttpRequest) -> HttpAnswer:
        metrics = context.subscriber("metrics")
        if not isinstance(metrics, MetricsSubscriber):
            raise HttpRefusal(404, "there are no metrics: --disable-metrics, --disable-observability, or see the log")
        media_type, body = metrics.expose(request.headers.get("accept", ""))
        return HttpAnswer(body, media_type=media_type, headers={"Vary": "Accept"})

    return [
        HttpRoute(
            method="GET",
            path="/metrics",
            answer=answer,
            summary="All metrics in Prometheus' text format, or in OpenMetrics where `Accept` asks for it",
            media_type=TEXT,
            refusals={404: "metrics are switched off"},
        )
    ]
