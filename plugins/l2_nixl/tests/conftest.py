from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lmcache_core import L2Adapter
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context
from lmcache_devkit.l2_driver import L2Driver
from lmcache_l2_nixl.config import NixlStoreDynamicSettings, NixlStoreSettings
from lmcache_l2_nixl.dynamic import open_nixl_store_dynamic
from lmcache_l2_nixl.store import open_nixl_store

OpenHere = Callable[..., L2Driver]


@pytest.fixture
def memory() -> BorrowedMemory:
    return BorrowedMemory()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "l2"


@pytest.fixture
def open_pool(root: Path, memory: BorrowedMemory) -> Iterator[OpenHere]:
    """`open_pool(pool_size=8, ...)` opens a pool of POSIX below `root`; the test's end closes all of them."""
    opened: list[L2Driver] = []

    def open_here(params: dict[str, Any] | None = None, **settings: Any) -> L2Driver:
        given = {
            "backend": "POSIX", "pool_size": 8, "slot_bytes": 64 * 1024,
            "backend_params": {"file_path": str(root), **(params or {})}, **settings,
        }  # fmt: skip
        opened.append(_driver(open_nixl_store(NixlStoreSettings.model_validate(given), _context(memory))))
        return opened[-1]

    yield open_here
    for driver in opened:
        driver.close(30)


@pytest.fixture
def open_files(root: Path, memory: BorrowedMemory) -> Iterator[OpenHere]:
    """The same of `nixl_store_dynamic`."""
    opened: list[L2Driver] = []

    def open_here(params: dict[str, Any] | None = None, **settings: Any) -> L2Driver:
        given = {"backend": "POSIX", "backend_params": {"file_path": str(root), **(params or {})}, **settings}
        settings_ = NixlStoreDynamicSettings.model_validate(given)
        opened.append(_driver(open_nixl_store_dynamic(settings_, _context(memory))))
        return opened[-1]

    yield open_here
    for driver in opened:
        driver.close(30)


def _context(memory: BorrowedMemory) -> Any:
    return adapter_context(memory, name="nixl")


def _driver(adapter: L2Adapter) -> L2Driver:
    driver = L2Driver(adapter)
    driver.usage()
    return driver
