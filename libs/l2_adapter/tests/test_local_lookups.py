"""Where `contains` answers from memory, it says nothing about the backend, and its breaker does not listen."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from lmcache_core import AdapterContext, BorrowedBuffer, CircuitState, ObjectKey, Outcome
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context, object_key
from lmcache_devkit.fake_clock import FakeClock
from lmcache_devkit.l2_driver import WAIT_SECONDS, L2Driver
from lmcache_l2_adapter import AsyncL2Adapter, BlockingL2Adapter
from lmcache_l2_adapter.backend_calls import CircuitBreaker
from lmcache_l2_adapter.object_adapter import LOOKUPS_TOGETHER

DONE, FAILED = Outcome.DONE, Outcome.FAILED
A = object_key(0)


class OnThreads(BlockingL2Adapter):
    contains_is_local = True
    asked = 0
    fault: BaseException | None = None
    answer: object = True

    def store(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        return DONE

    def load(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
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

    async def store(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        return DONE

    async def load(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        self.asked += 1
        raise OSError(5, "EIO")

    async def contains(self, key: ObjectKey) -> bool:
        if self.fault is not None:
            raise self.fault
        return self.answer  # type: ignore[return-value]


Adapter = OnThreads | OnALoop


@pytest.fixture(params=[OnThreads, OnALoop])
def adapter(request: pytest.FixtureRequest, memory: BorrowedMemory, clock: FakeClock) -> Iterator[Adapter]:
    breaker = CircuitBreaker(clock, threshold=3, cool_down_seconds=1.0)
    adapter = request.param(adapter_context(memory, clock=clock), 1, breaker=breaker)
    yield adapter
    adapter.close(WAIT_SECONDS)


@pytest.fixture
def driver(adapter: Adapter) -> L2Driver:
    return L2Driver(adapter)


def test_lookups_between_failures_do_not_hide_them(adapter: Adapter, driver: L2Driver, memory: BorrowedMemory) -> None:
    for _ in range(5):
        assert driver.has(A) == (DONE,)  # also where the breaker is open
        assert driver.load((A, memory.lend(64))) == (FAILED,)
    assert adapter.asked == 3
    assert adapter.circuit.state is CircuitState.OPEN


def test_a_lookup_is_not_the_probe(
    adapter: Adapter, driver: L2Driver, memory: BorrowedMemory, clock: FakeClock
) -> None:
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


class Asked(OnALoop):
    """Remembers by which task of the loop each key was asked for; one key has no answer."""

    def __init__(self, context: AdapterContext, operation_timeout_seconds: float = 20.0) -> None:
        self.tasks: list[asyncio.Task[object] | None] = []
        self.silent: ObjectKey | None = None
        super().__init__(context, 4, operation_timeout_seconds)

    async def contains(self, key: ObjectKey) -> bool:
        self.tasks.append(asyncio.current_task())
        if key == self.silent:
            await asyncio.Event().wait()
        return True


KEYS = [object_key(number) for number in range(2 * LOOKUPS_TOGETHER + 1)]


def test_many_lookups_on_a_loop_are_few_tasks(memory: BorrowedMemory) -> None:
    adapter = Asked(adapter_context(memory))
    assert L2Driver(adapter).has(*KEYS) == (DONE,) * len(KEYS)
    assert len(adapter.tasks) == len(KEYS)
    assert len(set(adapter.tasks)) == 3
    adapter.contains_is_local = False
    adapter.tasks.clear()
    L2Driver(adapter).has(*KEYS)
    assert len(set(adapter.tasks)) == len(KEYS), "what asks a backend does not wait for one another"
    adapter.close(WAIT_SECONDS)


def test_a_lookup_without_an_answer_times_out_with_those_behind_it_and_keeps_no_pin(memory: BorrowedMemory) -> None:
    adapter = Asked(adapter_context(memory), operation_timeout_seconds=0.05)
    adapter.silent = KEYS[3]
    outcomes = L2Driver(adapter).lookup(*KEYS)
    behind = LOOKUPS_TOGETHER - 3
    assert outcomes == (DONE,) * 3 + (Outcome.TIMED_OUT,) * behind + (DONE,) * (LOOKUPS_TOGETHER + 1)
    free = [adapter._ObjectL2Adapter__guard.begin_removal(key.object_id) for key in KEYS]  # type: ignore[attr-defined]
    assert free == [outcome is not DONE for outcome in outcomes]
    adapter.close(WAIT_SECONDS)


def test_lookups_that_a_close_finds_waiting_are_failed_and_keep_no_pin(memory: BorrowedMemory) -> None:
    adapter = Asked(adapter_context(memory))
    adapter.silent = KEYS[0]
    driver = L2Driver(adapter)
    jobs = [adapter.submit_lookup(KEYS[:LOOKUPS_TOGETHER]) for _ in range(8)]  # four run, four wait
    adapter.close(0.2)
    assert [driver.finish(job) for job in jobs] == [(FAILED,) * LOOKUPS_TOGETHER] * 8
    assert all(adapter._ObjectL2Adapter__guard.begin_removal(key.object_id) for key in KEYS)  # type: ignore[attr-defined]


def test_adapters_that_do_not_say_so_are_asked_through_the_breaker() -> None:
    assert not BlockingL2Adapter.contains_is_local
    assert not AsyncL2Adapter.contains_is_local
