"""What every subscriber promises, of the one that keeps events for the dashboard, and what all routes promise, of its page."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from lmcache_core import ServerView, Subscriber
from lmcache_devkit import HttpRoutesSuite, SubscriberSuite
from lmcache_devkit.fake_server_view import FakeServerView
from lmcache_observability.dashboard.recent_events import RecentEvents
from lmcache_observability.metrics.settings import MetricsSettings
from lmcache_observability.metrics.subscriber import MetricsSubscriber
from lmcache_observability.tracing.settings import SlowRequestsSettings
from lmcache_observability.tracing.slow_requests import SlowRequestsSubscriber
from plugins.observability.tests.dashboard.status import status


class TestRecentEvents(SubscriberSuite):
    offer = "recent_events"


class _DashboardSuite(HttpRoutesSuite):
    offer = "dashboard"

    @pytest.fixture
    def server(self) -> ServerView:
        return FakeServerView(said=status())


class TestDashboardAlone(_DashboardSuite):
    """With --disable-observability."""


class TestDashboard(_DashboardSuite):
    @pytest.fixture
    def subscribers(self) -> Mapping[str, Subscriber]:
        return {
            "metrics": MetricsSubscriber(MetricsSettings.model_validate({})),
            "slow_requests": SlowRequestsSubscriber(SlowRequestsSettings.model_validate({})),
            "recent_events": RecentEvents(),
        }
