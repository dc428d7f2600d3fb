"""`fault_inject` without faults keeps every requirement around an adapter with a medium, restarts and kills included."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lmcache_devkit import L2AdapterSuite

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:'fault_inject' does not declare VERIFIES"),  # by design, whatever is inside
]


class AroundFiles(L2AdapterSuite):
    offer = "fault_inject"
    inner: str
    payload_bytes_max = 0
    open_close_rounds = 20

    @pytest.fixture
    def settings(self, tmp_path: Path) -> Mapping[str, Any]:
        return {"inner": {"type": self.inner, "base_path": str(tmp_path / "kv")}}

    @pytest.fixture
    def small_settings(self, tmp_path: Path) -> Mapping[str, Any]:
        small = {"base_path": str(tmp_path / "small"), "max_capacity_gb": self.small_bytes / 2**30}
        return {"inner": {"type": self.inner, **small}}


class TestAroundFs(AroundFiles):
    inner = "fs"


class TestAroundFsNative(AroundFiles):
    inner = "fs_native"
