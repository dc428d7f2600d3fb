from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context
from lmcache_l2_fs_native.adapter import FsNativeAdapter
from lmcache_l2_fs_native.config import FsNativeSettings
from lmcache_l2_fs_native.opening import open_fs_native
from lmcache_native.io import IoEngine

OpenNative = Callable[..., FsNativeAdapter]


@pytest.fixture(params=["threads", "io_uring"])
def io_engine(request: pytest.FixtureRequest) -> str:
    """Each engine that there is."""
    kind: str = request.param
    if kind == "io_uring" and not IoEngine.has_io_uring():
        pytest.skip("io_uring is not built in, or this kernel does not allow it")
    return kind


@pytest.fixture
def memory() -> BorrowedMemory:
    return BorrowedMemory()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "kv"


@pytest.fixture
def open_here(root: Path, memory: BorrowedMemory) -> Iterator[OpenNative]:
    """`open_here(fsync=True, ...)` opens an adapter on `root`; the test's end closes all of them."""
    opened: list[FsNativeAdapter] = []

    def open_here(*, boot_id: str = "", **settings: Any) -> FsNativeAdapter:
        context = adapter_context(memory, boot_id=boot_id, name="fs_native")
        values = {"base_path": str(root), "io_engine": "threads", **settings}
        opened.append(open_fs_native(FsNativeSettings.model_validate(values), context))
        return opened[-1]

    yield open_here
    for adapter in opened:
        adapter.close(30)
