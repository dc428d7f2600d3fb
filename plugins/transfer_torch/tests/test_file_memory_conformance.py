"""Conformance of the L1 that is a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lmcache_devkit import L1MemorySuite


class TestFile(L1MemorySuite):
    offer = "file"

    @pytest.fixture
    def settings(self, tmp_path: Path) -> Mapping[str, Any]:
        return {"path": str(tmp_path / "slab"), "use_direct_io": False}
