"""The requirements of an L2 adapter, for the one that LMCACHE_CHECK names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from lmcache_devkit.checks.check_request import CheckRequest
from lmcache_devkit.l2_suite import L2AdapterSuite

CHECK = CheckRequest.from_environment()


class TestOffer(L2AdapterSuite):
    offer = CHECK.name

    @pytest.fixture
    def settings(self) -> Mapping[str, Any]:
        return CHECK.settings
