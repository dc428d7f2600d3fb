"""The requirements of HTTP routes, for the group that LMCACHE_CHECK names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from lmcache_devkit.checks.check_request import CheckRequest
from lmcache_devkit.http_routes_suite import HttpRoutesSuite

CHECK = CheckRequest.from_environment()


class TestOffer(HttpRoutesSuite):
    offer = CHECK.name

    @pytest.fixture
    def settings(self) -> Mapping[str, Any]:
        return CHECK.settings
