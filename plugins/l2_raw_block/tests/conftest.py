from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from lmcache_core import Usage
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context
from lmcache_devkit.l2_driver import L2Driver
from lmcache_l2_raw_block.adapter import RawBlockAdapter, open_raw_block
from lmcache_l2_raw_block.config import RawBlockSettings

META_BYTES = 2**20
SLOT_BYTES = 64 * 2**10
SLOTS = 32
TIMEOUT_SECONDS = 60.0

OpenHere = Callable[..., L2Driver]


@pytest.fixture
def memory() -> BorrowedMemory:
    return BorrowedMemory()


@pytest.fixture
def device(tmp_path: Path) -> Path:
    """A file of zeros with room for `SLOTS` slots."""
    path = tmp_path / "device"
    with path.open("wb") as file:
        file.truncate(META_BYTES + SLOTS * SLOT_BYTES)
    return path


@pytest.fixture
def open_here(device: Path, memory: BorrowedMemory) -> Iterator[OpenHere]:
    """`open_here(fsync=True, ...)` opens an adapter on the device; the test's end closes all of them."""
    opened: list[L2Driver] = []

    def open_here(**settings: Any) -> L2Driver:
        context = adapter_context(memory, name="raw_block")
        opened.append(L2Driver(open_raw_block(settings_for(device, **settings), context)))
        return opened[-1]

    yield open_here
    for driver in opened:
        driver.close(30)


def settings_for(path: Path, **changed: Any) -> RawBlockSettings:
    return RawBlockSettings.model_validate(
        {"device_path": str(path), "slot_bytes": SLOT_BYTES, "meta_total_bytes": META_BYTES, **changed}
    )


def known_usage(driver: L2Driver, timeout_seconds: float = TIMEOUT_SECONDS) -> Usage:
    """What is stored, once every header was read."""
    end = time.monotonic() + timeout_seconds
    while (usage := driver.adapter.usage()) is None:
        assert time.monotonic() < end, "the recovery did not end"
        time.sleep(0.01)
    return usage


def counters(driver: L2Driver) -> Mapping[str, int]:
    assert isinstance(driver.adapter, RawBlockAdapter)
    return driver.adapter.counters()
