"""The conformance kit."""

from __future__ import annotations

import pytest

from lmcache_devkit import HttpRoutesSuite, SubscriberSuite
from lmcache_observability.metrics import block_life


class TestMetrics(SubscriberSuite):
    offer = "metrics"

    @pytest.fixture(autouse=True)
    def few_blocks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """So few that the suite fills what is kept of them."""
        monkeypatch.setattr(block_life, "BLOCKS_MAX", 500)
        monkeypatch.setattr(block_life, "REQUESTS_MAX", 100)


class TestRoutes(HttpRoutesSuite):
    offer = "metrics"
