from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context
from lmcache_devkit.l2_driver import L2Driver
from lmcache_l2_lm.adapter import LmAdapter, open_lm
from lmcache_l2_lm.config import LmSettings
from plugins.l2_lm.tests.running import Running, running

OpenLm = Callable[..., L2Driver]


@pytest.fixture
def store() -> Iterator[Running]:
    """A store server in memory, in this process."""
    with running() as server:
        yield server


@pytest.fixture
def memory() -> BorrowedMemory:
    return BorrowedMemory()


@pytest.fixture
def open_at(memory: BorrowedMemory) -> Iterator[OpenLm]:
    """`open_at(port, timeout_seconds=1, ...)` opens an adapter; the test's end closes all of them."""
    with ExitStack() as opened:

        def open_at(port: int, **settings: Any) -> L2Driver:
            given = {"host": "127.0.0.1", "port": port, **settings}
            adapter: LmAdapter = open_lm(LmSettings.model_validate(given), adapter_context(memory, name="lm"))
            opened.callback(adapter.close, 5)
            return L2Driver(adapter)

        yield open_at
