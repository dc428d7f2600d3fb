"""A scripted adapter, and what its coroutines wait at."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from core.tests.jobs.scripted_adapter import Gate, Scripted
from lmcache_core.testing.l2_driver import WAIT_SECONDS, L2Driver
from lmcache_core.testing.lent_memory import LentMemory, adapter_context


@pytest.fixture
def memory() -> LentMemory:
    return LentMemory(2**20)


@pytest.fixture
def adapter(request: pytest.FixtureRequest, memory: LentMemory) -> Iterator[Scripted]:
    adapter = Scripted(adapter_context(memory, name="scripted"), **getattr(request, "param", {}))
    yield adapter
    adapter.close(WAIT_SECONDS)
    assert adapter.was_stopped.wait(WAIT_SECONDS)


@pytest.fixture
def driver(adapter: Scripted) -> L2Driver:
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
