"""What all routes promise, of those about slow requests."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from lmcache_core import Subscriber
from lmcache_devkit import HttpRoutesSuite
from lmcache_observability.tracing.settings import SlowRequestsSettings
from lmcache_observability.tracing.slow_requests import SlowRequestsSubscriber


class TestRequests(HttpRoutesSuite):
    offer = "requests"

    @pytest.fixture
    def subscribers(self) -> Mapping[str, Subscriber]:
        return {"slow_requests": SlowRequestsSubscriber(SlowRequestsSettings.model_validate({}))}


class TestRequestsAlone(HttpRoutesSuite):
    offer = "requests"
