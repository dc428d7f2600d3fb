"""What this distribution offers.  Imported at every start, so nothing but names is here."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core import Offer, SettingGroup, hookimpl

_METRICS, _DASHBOARD = "lmcache_observability.metrics", "lmcache_observability.dashboard"
_TRACING, _TRACE = "lmcache_observability.tracing", "lmcache_observability.trace"


@hookimpl
def lmcache_subscribers() -> Sequence[Offer]:
    return [
        Offer(
            "lookup_hash",
            "A JSON line for each lookup, with its chunk hashes",
            "lmcache_observability.lookup_hash.lookup_hash_subscriber:open_lookup_hash",
            "lmcache_observability.lookup_hash.settings:LookupHashSettings",
        ),
        Offer(
            "metrics",
            "Metrics for Prometheus and OTLP collectors",
            f"{_METRICS}.open_metrics:open_metrics",
            f"{_METRICS}.settings:MetricsSettings",
            default=True,
        ),
        Offer(
            "recent_events",
            "Keeps what happened of late, for the dashboard",
            f"{_DASHBOARD}.recent_events:open_recent_events",
            default=True,
        ),
        Offer(
            "slow_requests",
            "Keeps the slowest requests of late, with their steps",
            f"{_TRACING}.slow_requests:open_slow_requests",
            f"{_TRACING}.settings:SlowRequestsSettings",
            default=True,
        ),
        Offer(
            "trace",
            "Records what the server is asked, for `lmcache trace`",
            f"{_TRACE}.trace_subscriber:open_trace",
            f"{_TRACE}.settings:TraceSettings",
        ),
        Offer(
            "tracing",
            "Spans of requests, to an OTLP/HTTP collector",
            f"{_TRACING}.tracing_subscriber:open_tracing",
            f"{_TRACING}.settings:TracingSettings",
        ),
    ]


@hookimpl
def lmcache_http_routes() -> Sequence[Offer]:
    return [
        Offer("dashboard", "`GET /dashboard`", f"{_DASHBOARD}.routes:open_dashboard", default=True),
        Offer("metrics", "`GET /metrics`", f"{_METRICS}.routes:open_metrics_routes", default=True),
        Offer("requests", "`GET /requests/slowest`", f"{_TRACING}.slowest_route:open_requests_routes", default=True),
    ]


@hookimpl
def lmcache_commands() -> Sequence[Offer]:
    return [Offer("trace", "Look at, convert or replay a recorded trace", f"{_TRACE}.command:run_trace")]


@hookimpl
def lmcache_settings() -> Sequence[SettingGroup]:
    module = "lmcache_observability.settings"
    return [SettingGroup("Metrics, spans and recordings", f"{module}:ObservabilitySettings", f"{module}:apply")]
