"""Memory and a clock for adapters, a scripted one, and what its coroutines wait at."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from libs.l2_adapter.tests.scripted_adapter import Gate, Scripted, closed_behind
from lmcache_core import L2Adapter
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context
from lmcache_devkit.fake_clock import FakeClock
from lmcache_devkit.l2_driver import L2Driver


@pytest.fixture
def memory() -> BorrowedMemory:
    return BorrowedMemory(2**20)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def adapter(request: pytest.FixtureRequest, memory: BorrowedMemory) -> Iterator[Scripted]:
    with closed_behind(Scripted(adapter_context(memory, name="scripted"), **getattr(request, "param", {}))) as adapter:
        yield adapter


@pytest.fixture
def driver(adapter: L2Adapter) -> L2Driver:
    return L2Driver(adapter)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


@pytest.fixture
def stubborn() -> Iterator[Gate]:
    gate = Gate(is_stubborn=True)
    yield gate
    gate.opened.set()
