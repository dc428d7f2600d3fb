"""Conformance of the service, with programs and without."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lmcache_devkit import ServiceSuite


class TestWithPrograms(ServiceSuite):
    offer = "sidecar"

    @pytest.fixture
    def settings(self, tmp_path: Path) -> Mapping[str, Any]:
        (tmp_path / "a.sh").write_text("echo started; exec sleep 1000")
        (tmp_path / "b.sh").write_text("exit 3")
        return {"locations": [str(tmp_path)], "config": {"interval_seconds": 30}}


class TestWithout(ServiceSuite):
    offer = "sidecar"
