"""Where `contains` answers from memory, it says nothing about the backend, and its breaker does not listen."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lmcache_core import AsyncL2Adapter, BlockingL2Adapter, LentBuffer, ObjectKey, Outcome
from lmcache_core.builtin.memory_l2 import MemoryAdapter
from lmcache_core.jobs.circuit_breaker import CircuitBreaker, CircuitState
from lmcache_core.testing.fake_clock import FakeClock
from lmcache_core.testing.l2_driver import WAIT_SECONDS, L2Driver
from lmcache_core.testing.lent_memory import LentMemory, adapter_context, object_key

DONE, FAILED = Outcome.DONE, Outcome.FAILED
A = object_key(0)


class OnThreads(BlockingL2Adapter):
    contains_is_local = True
    asked = 0
    fault: BaseException | None = None
    answer: object = True

    def store(self, key: ObjectKey, buffer: LentBuffer) -> Outcome:
        return DONE

    def load(self, key: ObjectKey, buffer: LentBuffer) -> Outcome:
        self.asked += 1
        raise OSError(5, "EIO")

    def contains(self, key: ObjectKey) -> bool:
        if self.fault is not None:
            raise self.fault
        return self.answer  # type: ignore[return-value]


class OnALoop(AsyncL2Adapter):
    contains_is_local = True
    asked = 0
    fault: BaseException | None = None
    answer: object = True

    async def store(self, key: ObjectKey, buffer: LentBuffer) -> Outcome:
        return DONE

    async def load(self, key: ObjectKey, buffer: LentBuffer) -> Outcome:
        self.asked += 1
        raise OSError(5, "EIO")

    async def contains(self, key: ObjectKey) -> bool:
        if self.fault is not None:
            raise self.fault
        return self.answer  # type: ignore[return-value]


Adapter = OnThreads | OnALoop


@pytest.fixture
def memory() -> LentMemory:
    return LentMemory(2**20)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=[OnThreads, OnALoop])
def adapter(request: pytest.FixtureRequest, memory: LentMemory, clock: FakeClock) -> Iterator[Adapter]:
    breaker = CircuitBreaker(clock, threshold=3, cool_down_seconds=1.0)
    adapter = request.param(adapter_context(memory, clock=clock), 1, breaker=breaker)
    yield adapter
    adapter.close(WAIT_SECONDS)


@pytest.fixture
def driver(adapter: Adapter) -> L2Driver:
    return L2Driver(adapter)


def test_lookups_between_failures_do_not_hide_them(adapter: Adapter, driver: L2Driver, memory: LentMemory) -> None:
    for _ in range(5):
        assert driver.has(A) == (DONE,)  # also where the breaker is open
        assert driver.load((A, memory.lend(64))) == (FAILED,)
    assert adapter.asked == 3
    assert adapter.circuit.state is CircuitState.OPEN


def test_a_lookup_is_not_the_probe(adapter: Adapter, driver: L2Driver, memory: LentMemory, clock: FakeClock) -> None:
    for _ in range(3):
        driver.load((A, memory.lend(64)))
    for cool_down in (1.0, 2.0, 4.0):
        assert adapter.circuit.retry_in_seconds == cool_down
        clock.advance(cool_down)
        assert driver.has(A) == (DONE,)
        assert driver.load((A, memory.lend(64))) == (FAILED,)
    assert adapter.asked == 6
    clock.advance(8.0)
    assert driver.store((A, memory.lend(64))) == (DONE,)
    assert adapter.circuit.state is CircuitState.CLOSED


@pytest.mark.parametrize("fault", [RuntimeError("index is broken"), TimeoutError(), BaseException("panic")])
def test_a_lookup_that_raises_is_failed_and_logged_and_keeps_no_pin(
    adapter: Adapter, driver: L2Driver, fault: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    adapter.fault = fault
    assert driver.lookup(A, A, A, A) == (FAILED,) * 4
    assert type(fault).__name__ in caplog.text
    assert adapter.circuit.failures_in_a_row == 0
    assert adapter._ObjectL2Adapter__guard.begin_removal(A.object_id)  # type: ignore[union-attr]


def test_an_answer_of_another_type_is_a_failure_too(
    adapter: Adapter, driver: L2Driver, caplog: pytest.LogCaptureFixture
) -> None:
    adapter.answer = 1
    assert driver.lookup(A) == (FAILED,)
    assert "returned 1 where a value of bool belongs" in caplog.text


def test_adapters_that_do_not_say_so_are_asked_through_the_breaker() -> None:
    assert not BlockingL2Adapter.contains_is_local
    assert not AsyncL2Adapter.contains_is_local
    assert MemoryAdapter.contains_is_local
