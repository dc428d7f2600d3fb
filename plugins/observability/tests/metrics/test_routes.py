"""`GET /metrics` of the admin API."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from lmcache_core import HttpRefusal, HttpRequest, ServerView, Subscriber
from lmcache_devkit.fake_server_view import FakeServerView
from lmcache_observability.metrics.open_metrics import open_metrics
from lmcache_observability.metrics.routes import open_metrics_routes
from plugins.observability.tests.metrics.metrics_settings import metrics_settings


@dataclass
class ContextStandIn:
    found: Subscriber | None
    server: ServerView

    def subscriber(self, name: str) -> Subscriber | None:
        return self.found if name == "metrics" else None

    def service(self, name: str) -> None:
        return None


def request(accept: str = "") -> HttpRequest:
    return HttpRequest({}, {}, {"accept": accept} if accept else {}, b"")


def test_it_answers_with_what_the_subscriber_has() -> None:
    metrics = open_metrics(metrics_settings())
    metrics.begin(FakeServerView())
    (route,) = open_metrics_routes(None, ContextStandIn(metrics, FakeServerView()))
    assert (route.method, route.path, route.open) == ("GET", "/metrics", False)
    plain, wide = route.answer(request()), route.answer(request("application/openmetrics-text"))
    assert plain.media_type.startswith("text/plain; version=0.0.4")
    assert b"target_info" in plain.body
    assert wide.media_type.startswith("application/openmetrics-text")
    assert wide.body.endswith(b"# EOF\n")
    metrics.close()


def test_without_the_subscriber_it_says_why() -> None:
    (route,) = open_metrics_routes(None, ContextStandIn(None, FakeServerView()))
    with pytest.raises(HttpRefusal) as raised:
        route.answer(request())
    assert raised.value.status == 404
    assert "--disable-metrics" in raised.value.detail
