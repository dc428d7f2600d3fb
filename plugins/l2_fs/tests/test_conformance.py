from __future__ import annotations

from pathlib import Path

import pytest

from lmcache_core import AdapterContext, L2Adapter
from lmcache_core.testing.l2_suite import L2AdapterSuite
from lmcache_l2_fs.adapter import open_fs
from lmcache_l2_fs.config import FsSettings

WAYS: dict[str, dict[str, object]] = {
    "buffered": {},
    "fsync": {"fsync": True},
    "odirect": {"use_odirect": True, "num_workers": 2},
    "read_ahead": {"read_ahead_size": 4096, "relative_tmp_dir": "work/parts"},
}


class TestFs(L2AdapterSuite):
    @pytest.fixture(params=WAYS)
    def opened(self, request: pytest.FixtureRequest, tmp_path: Path, context: AdapterContext) -> L2Adapter:
        return open_fs(FsSettings.model_validate({"base_path": str(tmp_path / "kv"), **WAYS[request.param]}), context)
