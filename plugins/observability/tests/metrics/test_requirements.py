"""The conformance kit."""

from __future__ import annotations

import pytest

from lmcache_devkit import HttpRoutesSuite, SubscriberSuite
from lmcache_observability.metrics import block_life, history


class TestMetrics(SubscriberSuite):
    offer = "metrics"

    @pytest.fixture(autouse=True)
    def few_blocks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """So few that the suite fills what is kept of them."""
        monkeypatch.setattr(block_life, "BLOCKS_MAX", 500)
        monkeypatch.setattr(block_life, "REQUESTS_MAX", 100)

    @pytest.fixture(autouse=True)
    def one_moment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Key figures are kept for an hour, however many events come: a suite that takes long would count them as growth."""
        monkeypatch.setattr(history, "STEP_SECONDS", history.SECONDS)


class TestRoutes(HttpRoutesSuite):
    offer = "metrics"
