"""Conformance checks of the coordinator view that LMCACHE_CHECK names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from lmcache_devkit.checks.check_request import CheckRequest
from lmcache_devkit.coordinator_view_suite import CoordinatorViewSuite

CHECK = CheckRequest.from_environment()


class TestOffer(CoordinatorViewSuite):
    offer = CHECK.name

    @pytest.fixture
    def settings(self) -> Mapping[str, Any]:
        return CHECK.settings
