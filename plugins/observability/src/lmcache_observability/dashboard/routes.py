"""`GET /dashboard`: the page, and its figures."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any, Final

from pydantic import BaseModel, Field

from lmcache_core import HttpAnswer, HttpContext, HttpRequest, HttpRoute, Subscriber
from lmcache_observability.dashboard.recent_events import RecentEvents
from lmcache_observability.dashboard.snapshot import snapshot
from lmcache_observability.metrics.subscriber import MetricsSubscriber
from lmcache_observability.samples.catalogue import samples
from lmcache_observability.tracing.slow_requests import SlowRequestsSubscriber

SLOW_REQUESTS: Final = 10
_FILES: Final = {
    "/dashboard": ("index.html", "text/html"),
    "/dashboard/dashboard.css": ("dashboard.css", "text/css"),
    "/dashboard/dashboard.js": ("dashboard.js", "text/javascript"),
    "/dashboard/chart.js": ("chart.js", "text/javascript"),
    "/dashboard/format.js": ("format.js", "text/javascript"),
    "/dashboard/icon.svg": ("icon.svg", "image/svg+xml"),
}
_HEADERS: Final = {
    # names come from tenants: only the page's own files are run, and no other page can frame it
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-cache",
}


_SUBSCRIBERS: Final[Mapping[str, type[Subscriber]]] = {
    "metrics": MetricsSubscriber,
    "slow_requests": SlowRequestsSubscriber,
    "recent_events": RecentEvents,
}


class DashboardData(BaseModel):
    """All that the dashboard shows.  Meant for its own page, whose version it follows; scripts use `/status`."""

    server: dict[str, Any] = Field(description="Which server this is, and how it is.")
    missing: list[str] = Field(description="Subscribers that are not active: what they would know is not here.")
    hit_rate: dict[str, Any] = Field(description="Beside what a cache without limits would hit, with the last hour.")
    served: dict[str, Any] = Field(description="Shares of requested chunks by tier, since the start.")
    traffic: dict[str, Any] = Field(description="Lookups and bytes per second, with the last hour.")
    l1: dict[str, Any] = Field(description="What L1 holds.")
    adapters: list[dict[str, Any]] = Field(description="L2 adapters.")
    tenants: list[dict[str, Any]] = Field(description="By cache salt.")
    slow_requests: list[dict[str, Any]] = Field(description="The slowest of late, with their steps.")
    events: list[dict[str, Any]] = Field(description="What happened, the newest first.")
    plugins: list[dict[str, Any]] = Field(description="As in `/status`.")
    subscribers: list[dict[str, Any]] = Field(description="Who listens to events.")
    workers: list[dict[str, Any]] = Field(description="Engine workers.")
    threads: list[dict[str, Any]] = Field(description="Threads of the server.")


def open_dashboard(settings: None, context: HttpContext) -> Sequence[HttpRoute]:
    """Without the subscribers `metrics`, `slow_requests` or `recent_events` the page says what is missing."""

    def data(request: HttpRequest) -> HttpAnswer:
        metrics, slow, recent = (context.subscriber(name) for name in _SUBSCRIBERS)
        return HttpAnswer(
            snapshot(
                context.server,
                samples(context.server),
                metrics.ceilings() if isinstance(metrics, MetricsSubscriber) else (),
                metrics.history.moments() if isinstance(metrics, MetricsSubscriber) else (),
                slow.slowest.list(SLOW_REQUESTS, time.time()) if isinstance(slow, SlowRequestsSubscriber) else (),
                recent.latest() if isinstance(recent, RecentEvents) else (),
                [name for name, kind in _SUBSCRIBERS.items() if not isinstance(context.subscriber(name), kind)],
            )
        )

    return [
        *(_file(path, name, media_type) for path, (name, media_type) in _FILES.items()),
        HttpRoute("GET", "/dashboard/data", data, "What the dashboard shows", answers=DashboardData),
    ]


def _file(path: str, name: str, media_type: str) -> HttpRoute:
    body = files("lmcache_observability.dashboard").joinpath("page", name).read_bytes()
    about = "The dashboard" if media_type == "text/html" else f"{name} of the dashboard"
    return HttpRoute("GET", path, _answering(body, media_type), about, media_type=media_type, open=True)


def _answering(body: bytes, media_type: str) -> Callable[[HttpRequest], HttpAnswer]:
    answer = HttpAnswer(body, media_type=media_type, headers=_HEADERS)
    return lambda request: answer
