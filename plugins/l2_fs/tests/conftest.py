from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context
from lmcache_devkit.l2_driver import L2Driver
from lmcache_l2_fs.adapter import FsAdapter, open_fs
from lmcache_l2_fs.config import FsSettings

OpenFs = Callable[..., FsAdapter]


@pytest.fixture
def memory() -> BorrowedMemory:
    return BorrowedMemory()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "kv"


@pytest.fixture
def open_here(root: Path, memory: BorrowedMemory) -> Iterator[OpenFs]:
    """`open_here(fsync=True, ...)` opens an adapter on `root` and, unless `known=False`, waits until it knows what is
    there; the test's end closes all of them."""
    opened: list[FsAdapter] = []

    def open_here(*, boot_id: str = "", clock: Any = None, known: bool = True, **settings: Any) -> FsAdapter:
        context = adapter_context(memory, boot_id=boot_id, clock=clock, name="fs")
        opened.append(open_fs(FsSettings.model_validate({"base_path": str(root), **settings}), context))
        if known:
            L2Driver(opened[-1]).usage()
        return opened[-1]

    yield open_here
    for adapter in opened:
        adapter.close(30)
