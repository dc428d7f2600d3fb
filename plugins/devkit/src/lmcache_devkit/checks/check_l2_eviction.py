"""Conformance checks of the eviction of L2 that LMCACHE_CHECK names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from lmcache_devkit.checks.check_request import CheckRequest
from lmcache_devkit.l2_eviction_suite import L2EvictionSuite

CHECK = CheckRequest.from_environment()


class TestOffer(L2EvictionSuite):
    offer = CHECK.name

    @pytest.fixture
    def settings(self) -> Mapping[str, Any]:
        return CHECK.settings
