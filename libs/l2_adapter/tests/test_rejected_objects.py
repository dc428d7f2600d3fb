"""What was rejected is dealt with when the backend can be asked, and until then no other object waits for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from lmcache_core import AdapterContext, BorrowedBuffer, Capability, CircuitState, ObjectKey, Outcome
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context, object_key
from lmcache_devkit.fake_clock import FakeClock
from lmcache_devkit.l2_driver import WAIT_SECONDS, L2Driver
from lmcache_l2_adapter import AsyncL2Adapter, BlockingL2Adapter
from lmcache_l2_adapter.backend_calls import CircuitBreaker

DONE, MISSING, REJECTED, FAILED = Outcome.DONE, Outcome.MISSING, Outcome.REJECTED, Outcome.FAILED
DAMAGED, FOREIGN = Outcome.DAMAGED, Outcome.FOREIGN
A, B = map(object_key, range(2))


class Record:
    """What was asked, and what the next discards come to."""

    def __init__(self) -> None:
        self.calls: list[object] = []
        self.answers: list[object] = []
        self.is_down = False
        self.asked = threading.Semaphore(0)
        self.hold = threading.Event()
        self.hold.set()

    def store(self) -> Outcome:
        self.calls.append("store")
        if self.is_down:
            raise OSError("down")
        return DONE

    def discard(self, outcome: Outcome) -> bool:
        self.calls.append(outcome)
        self.asked.release()
        answer = self.answers.pop(0) if self.answers else True
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[return-value]


class OnThreads(BlockingL2Adapter):
    capabilities = Capability.DELETE

    def __init__(self, context: AdapterContext, record: Record, breaker: CircuitBreaker) -> None:
        self.record = record
        super().__init__(context, 1, breaker=breaker)

    def store(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        assert self.record.hold.wait(WAIT_SECONDS)
        return self.record.store()

    def load(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        return DONE

    def contains(self, key: ObjectKey) -> bool:
        return True

    def discard(self, key: ObjectKey, outcome: Outcome) -> bool:
        return self.record.discard(outcome)


class OnALoop(AsyncL2Adapter):
    capabilities = Capability.DELETE

    def __init__(self, context: AdapterContext, record: Record, breaker: CircuitBreaker) -> None:
        self.record = record
        super().__init__(context, 1, breaker=breaker)

    async def store(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        await self.in_thread(self.record.hold.wait, WAIT_SECONDS)
        return self.record.store()

    async def load(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        return DONE

    async def contains(self, key: ObjectKey) -> bool:
        return True

    async def discard(self, key: ObjectKey, outcome: Outcome) -> bool:
        return self.record.discard(outcome)


@pytest.fixture
def record() -> Record:
    return Record()


@pytest.fixture(params=[OnThreads, OnALoop])
def driver(
    request: pytest.FixtureRequest, memory: BorrowedMemory, clock: FakeClock, record: Record
) -> Iterator[L2Driver]:
    breaker = CircuitBreaker(clock, threshold=2, cool_down_seconds=1.0)
    adapter = request.param(adapter_context(memory, clock=clock), record, breaker)
    yield L2Driver(adapter)
    record.hold.set()
    adapter.close(WAIT_SECONDS)


def settle(driver: L2Driver) -> None:
    """Until the discards that were asked for have run: a delete waits in the same line, behind them."""
    driver.delete(B)


def open_breaker(driver: L2Driver, record: Record, memory: BorrowedMemory) -> None:
    record.is_down = True
    assert driver.store((B, memory.lend(64)), (B, memory.lend(64))) == (FAILED, FAILED)
    assert driver.adapter.circuit.state is CircuitState.OPEN  # type: ignore[attr-defined]
    record.is_down = False
    record.calls.clear()


@pytest.mark.parametrize("outcome", [DAMAGED, FOREIGN])
def test_a_discard_that_the_open_breaker_refused_is_asked_for_by_the_next_reject(
    driver: L2Driver, record: Record, memory: BorrowedMemory, clock: FakeClock, outcome: Outcome
) -> None:
    open_breaker(driver, record, memory)
    driver.adapter.reject(A, outcome)
    settle(driver)
    assert record.calls == []
    clock.advance(1.0)
    driver.adapter.reject(A, outcome)
    assert record.asked.acquire(timeout=WAIT_SECONDS)
    settle(driver)
    assert record.calls == [outcome]
    assert driver.has(A) == (DONE,)


@pytest.mark.parametrize("outcome", [DAMAGED, FOREIGN])
def test_a_discard_that_the_open_breaker_refused_is_asked_for_by_the_next_store(
    driver: L2Driver, record: Record, memory: BorrowedMemory, clock: FakeClock, outcome: Outcome
) -> None:
    open_breaker(driver, record, memory)
    driver.adapter.reject(A, outcome)
    assert driver.store((A, memory.lend(64))) == (FAILED,)
    clock.advance(1.0)
    assert driver.lookup(A) == (MISSING,)
    assert driver.store((A, memory.lend(64))) == (DONE,)
    assert record.calls == [outcome, "store"]
    assert driver.has(A) == (DONE,)


def test_a_discard_that_raised_is_asked_for_again_and_a_refusal_rejects_the_store(
    driver: L2Driver, record: Record, memory: BorrowedMemory
) -> None:
    record.answers = [OSError("hung up"), False, OSError("hung up"), True]
    driver.adapter.reject(A, DAMAGED)
    assert driver.store((A, memory.lend(64))) == (REJECTED,)
    assert driver.store((A, memory.lend(64))) == (FAILED,)
    assert driver.has(A) == (MISSING,)
    assert driver.store((A, memory.lend(64))) == (DONE,)
    assert record.calls == [DAMAGED] * 4 + ["store"]


def test_many_who_find_it_damaged_discard_it_once(driver: L2Driver, record: Record, memory: BorrowedMemory) -> None:
    record.hold.clear()
    held = driver.submit_store([(B, memory.lend(64))])  # the only place, so that the discard has to wait
    for _ in range(5):
        driver.adapter.reject(A, DAMAGED)
    record.hold.set()
    driver.finish(held)
    settle(driver)
    assert record.calls == ["store", DAMAGED]


def test_what_a_store_put_in_its_place_is_not_discarded_by_a_discard_that_comes_later(
    driver: L2Driver, record: Record, memory: BorrowedMemory
) -> None:
    """The store asks for the discard itself; the one that `reject` began must then find that it is done."""
    record.hold.clear()
    held = driver.submit_store([(B, memory.lend(64))])
    store = driver.submit_store([(A, memory.lend(64))])
    driver.adapter.reject(A, DAMAGED)  # behind the store
    record.hold.set()
    assert driver.finish(held) == driver.finish(store) == (DONE,)
    settle(driver)
    assert record.calls == ["store", DAMAGED, "store"]
    assert driver.has(A) == (DONE,)
