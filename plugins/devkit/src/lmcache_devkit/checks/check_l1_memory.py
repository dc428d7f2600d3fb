"""Conformance checks of the L1 memory that LMCACHE_CHECK names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from lmcache_devkit.checks.check_request import CheckRequest
from lmcache_devkit.l1_memory_suite import L1MemorySuite

CHECK = CheckRequest.from_environment()


class TestOffer(L1MemorySuite):
    offer = CHECK.name

    @pytest.fixture
    def settings(self) -> Mapping[str, Any]:
        return CHECK.settings
