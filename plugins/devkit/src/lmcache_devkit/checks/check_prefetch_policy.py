"""The requirements of a prefetch policy, for the one that LMCACHE_CHECK names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from lmcache_devkit.checks.check_request import CheckRequest
from lmcache_devkit.prefetch_policy_suite import PrefetchPolicySuite

CHECK = CheckRequest.from_environment()


class TestOffer(PrefetchPolicySuite):
    offer = CHECK.name

    @pytest.fixture
    def settings(self) -> Mapping[str, Any]:
        return CHECK.settings
