"""The requirements of a request module and of a service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from lmcache_devkit import RequestModuleSuite, ServiceSuite


class TestBlend(RequestModuleSuite):
    offer = "blend"

    @pytest.fixture
    def settings(self) -> Mapping[str, Any]:
        return {"index_chunks": 4096}


class TestBlendService(ServiceSuite):
    offer = "blend"
