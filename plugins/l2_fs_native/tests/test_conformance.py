"""The `fs_native` adapter keeps every requirement, with each engine and each way it can be set up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from lmcache_devkit import FileMedia, L2AdapterSuite, fail_methods
from lmcache_l2_fs_native.adapter import FsNativeAdapter
from lmcache_native.async_io import AsyncIo
from lmcache_native.io import IoEngine
from lmcache_object_files import ObjectDirectory


class FsNativeSuite(L2AdapterSuite):
    offer = "fs_native"
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
        """What an author wrote waits before it begins, as long as it is not cancelled."""
        stall = False
        for verb in ("store", "load", "contains", "delete"):
            method = getattr(FsNativeAdapter, verb)

            async def waiting(self: FsNativeAdapter, *arguments: Any, method: Any = method) -> Any:
                while stall:
                    await asyncio.sleep(0.005)
                return await method(self, *arguments)

            monkeypatch.setattr(FsNativeAdapter, verb, waiting)

        @contextmanager
        def stalled() -> Iterator[None]:
            nonlocal stall
            stall = True
            try:
                yield
            finally:
                stall = False

        return stalled

    @pytest.fixture
    def failing(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
        return fail_methods(
            monkeypatch, {AsyncIo: ("read_file", "write_file"), ObjectDirectory: ("check_file", "remove")}
        )


class Reduced(FsNativeSuite):
    """What does not depend on how files are written is shown once."""

    payload_bytes_max = 8 * 2**20 + 1
    open_close_rounds = 50


class TestThreads(FsNativeSuite):
    way: ClassVar[Mapping[str, Any]] = {"io_engine": "threads"}


@pytest.mark.slow
class TestThreadsDirect(Reduced):
    """Objects of the requirements are not a multiple of a block, so each of them is misaligned."""

    way: ClassVar[Mapping[str, Any]] = {"io_engine": "threads", "use_odirect": True, "num_workers": 2}


@pytest.mark.slow
class TestOneAtATime(Reduced):
    """On the medium before each answer, in blocks that are looked ahead one by one, and beside other names."""

    way: ClassVar[Mapping[str, Any]] = {
        "io_engine": "threads", "fsync": True, "queue_depth": 1, "in_flight_max_mb": 1, "read_ahead_size": 4096,
        "relative_tmp_dir": "work/parts",
    }  # fmt: skip


needs_io_uring = pytest.mark.skipif(
    not IoEngine.has_io_uring(), reason="io_uring is not built in, or this kernel does not allow it"
)


@needs_io_uring
@pytest.mark.slow
class TestIoUring(Reduced):
    way: ClassVar[Mapping[str, Any]] = {"io_engine": "io_uring"}


@needs_io_uring
class TestIoUringDirect(Reduced):
    way: ClassVar[Mapping[str, Any]] = {"io_engine": "io_uring", "use_odirect": True, "fsync": True}
