"""The conformance kit."""

from __future__ import annotations

from lmcache_core.testing import HttpRoutesSuite, SubscriberSuite


class TestMetrics(SubscriberSuite):
    offer = "metrics"


class TestRoutes(HttpRoutesSuite):
    offer = "metrics"
