"""The `mock` adapter keeps every requirement, and takes its time."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest

from core.tests.injected import mock
from lmcache_core import Outcome
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_devkit import BorrowedMemory, L2AdapterSuite, L2Driver
from lmcache_devkit.borrowed_memory import adapter_context, object_key, payload_of
from lmcache_devkit.l2.rig import OBJECT_BYTES, PAYLOAD_BYTES
from lmcache_devkit.mock_adapter import MockAdapter, MockSettings
from lmcache_devkit.simulated_link import SimulatedLink

DONE, FAILED = Outcome.DONE, Outcome.FAILED


class TestMock(L2AdapterSuite):
    offer = "mock"
    payload_bytes_max = 2**20
    open_close_rounds = 200

    @pytest.fixture
    def settings(self) -> Mapping[str, Any]:
        return {"max_size_gb": 1, "mock_bandwidth_gb": 10}

    @pytest.fixture
    def small_settings(self) -> Mapping[str, Any]:
        return {"max_size_gb": self.small_bytes / 2**30, "mock_bandwidth_gb": 10}


def opened(memory: BorrowedMemory, bytes_per_second: float) -> MockAdapter:
    given = mock(1, bytes_per_second)
    del given["type"]
    return MockAdapter(MockSettings(**given), adapter_context(memory))


def whole(memory: BorrowedMemory, number: int) -> tuple[Any, Any]:
    return object_key(number), memory.sealed(object_key(number), payload_of(number, PAYLOAD_BYTES))


def test_stores_and_loads_share_its_bandwidth() -> None:
    memory = BorrowedMemory()
    adapter = opened(memory, OBJECT_BYTES / 0.05)
    driver = L2Driver(adapter)
    started = time.monotonic()
    assert driver.store(whole(memory, 1)) == (DONE,)
    jobs = [driver.submit_store([whole(memory, number)]) for number in (2, 3)]
    jobs += [driver.submit_load([(object_key(1), memory.lend(OBJECT_BYTES))])]
    assert [driver.finish(job) for job in jobs] == [(DONE,)] * 3
    assert time.monotonic() - started >= 4 * 0.05
    adapter.close(5)


def test_what_moves_no_bytes_does_not_wait_for_the_link() -> None:
    """At a byte per second, an answer is one that did not wait."""
    memory = BorrowedMemory()
    adapter = opened(memory, 2**40)
    driver = L2Driver(adapter, wait_seconds=20)
    assert driver.store(whole(memory, 1)) == (DONE,)
    adapter._link = SimulatedLink(1)
    assert driver.has(object_key(1)) == (DONE,)
    assert driver.load((object_key(2), memory.lend(OBJECT_BYTES))) == (Outcome.MISSING,)
    assert driver.store(whole(memory, 1)) == (DONE,), "it is there"
    adapter.close(0)


def test_a_close_does_not_wait_for_the_link() -> None:
    memory = BorrowedMemory()
    driver = L2Driver(opened(memory, 1))
    jobs = [driver.submit_store([whole(memory, number)]) for number in range(4)]
    driver.close(0.2)
    for job in jobs:
        assert driver.finish(job) == (FAILED,)
        driver.wait_released(job)


def test_a_link_that_is_cut_wakes_all_waiters() -> None:
    link = SimulatedLink(1.0)
    passed: list[bool] = []
    waiting = threading.Thread(target=lambda: passed.append(link.wait_until(link.book(3600, time.monotonic()))))
    waiting.start()
    link.cut(0.05)
    link.cut(3600)  # the first one counts
    waiting.join(10)
    assert passed == [False]
    assert link.wait_until(time.monotonic()), "what has passed has passed"


def test_the_command_of_the_public_documentation_is_understood() -> None:
    plugins = load_plugins()
    model = plugins.model("l2_adapter", "mock")
    assert model is not None
    given = model.model_validate({"max_size_gb": 256, "mock_bandwidth_gb": 10})
    assert given.model_dump() == {"max_size_gb": 256, "mock_bandwidth_gb": 10}
