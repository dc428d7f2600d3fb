"""The conformance checks of its kind, for the offer that LMCACHE_CHECK names."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import pytest

from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_devkit.checks.check_request import CheckRequest
from lmcache_devkit.conformance import SUITES

CHECK = CheckRequest.from_environment()
_MODULE, _, _NAME = SUITES[OfferKind(CHECK.kind)].partition(":")
_Suite: Any = getattr(import_module(_MODULE), _NAME)


class TestOffer(_Suite):  # type: ignore[misc]
    offer = CHECK.name

    @pytest.fixture
    def settings(self) -> Mapping[str, Any]:
        return CHECK.settings
