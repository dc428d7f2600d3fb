"""Conformance checks of the coordinator state that LMCACHE_CHECK names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from lmcache_devkit.checks.check_request import CheckRequest
from lmcache_devkit.coordinator_state_suite import CoordinatorStateSuite

CHECK = CheckRequest.from_environment()


class TestOffer(CoordinatorStateSuite):
    offer = CHECK.name

    @pytest.fixture
    def settings(self) -> Mapping[str, Any]:
        return CHECK.settings
