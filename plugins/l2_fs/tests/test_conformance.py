"""The `fs` adapter keeps every requirement, each way it can be set up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from lmcache_devkit import FileMedia, L2AdapterSuite, fail_methods, stall_methods
from lmcache_l2_fs.adapter import FsAdapter, ObjectIO
from lmcache_object_files import ObjectDirectory


class FsSuite(L2AdapterSuite):
    offer = "fs"
    way: ClassVar[Mapping[str, Any]] = {}

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        return tmp_path / "kv"

    @pytest.fixture
    def settings(self, root: Path) -> Mapping[str, Any]:
        return {"base_path": str(root), **self.way}

    @pytest.fixture
    def small_settings(self, tmp_path: Path) -> Mapping[str, Any]:
        return {"base_path": str(tmp_path / "small"), "max_capacity_gb": self.small_bytes / 2**30, **self.way}

    @pytest.fixture
    def media(self, root: Path) -> FileMedia:
        return FileMedia(root)

    @pytest.fixture
    def stalled(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
        return stall_methods(monkeypatch, FsAdapter)

    @pytest.fixture
    def failing(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
        return fail_methods(monkeypatch, {ObjectIO: ("create", "open"), ObjectDirectory: ("check_file", "remove")})


class Reduced(FsSuite):
    """What does not depend on how files are written is shown once."""

    payload_bytes_max = 8 * 2**20 + 1
    open_close_rounds = 50


class TestBuffered(FsSuite):
    pass


@pytest.mark.slow
class TestSynced(Reduced):
    way: ClassVar[Mapping[str, Any]] = {"fsync": True}


@pytest.mark.slow
class TestDirect(Reduced):
    way: ClassVar[Mapping[str, Any]] = {"use_odirect": True, "num_workers": 2}


@pytest.mark.slow
class TestReadAhead(Reduced):
    way: ClassVar[Mapping[str, Any]] = {"read_ahead_size": 4096, "relative_tmp_dir": "work/parts"}
