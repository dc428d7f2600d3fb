"""Conformance checks of the transfer channel that LMCACHE_CHECK names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from lmcache_devkit.checks.check_request import CheckRequest
from lmcache_devkit.transfer_channel_suite import TransferChannelSuite

CHECK = CheckRequest.from_environment()


class TestOffer(TransferChannelSuite):
    offer = CHECK.name

    @pytest.fixture
    def settings(self) -> Mapping[str, Any]:
        return CHECK.settings
