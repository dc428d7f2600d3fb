"""Retries, the breaker and the size limit: one requirement for adapters on threads and on an event loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from lmcache_core import BorrowedBuffer, Capability, CircuitState, CircuitStatus, ObjectKey, Outcome
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context, object_key
from lmcache_devkit.fake_clock import FakeClock
from lmcache_devkit.l2_driver import WAIT_SECONDS, L2Driver
from lmcache_l2_adapter import AsyncL2Adapter, BlockingL2Adapter
from lmcache_l2_adapter.backend_calls import COOL_DOWN_SECONDS, FAILURES_MAX, CircuitBreaker, RetryBudget, RetryPolicy

DONE, MISSING, REJECTED, FAILED = Outcome.DONE, Outcome.MISSING, Outcome.REJECTED, Outcome.FAILED
A, B, C = map(object_key, range(3))


class Script:
    """What the backend does next; what is not in the script goes well."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.next: list[object] = []
        self.transient: Callable[[Exception], bool] | None = None
        self.called = threading.Event()

    def play(self, verb: str, otherwise: object) -> object:
        self.calls.append(verb)
        self.called.set()
        step = self.next.pop(0) if self.next else otherwise
        if isinstance(step, BaseException):
            raise step
        return step


class OnThreads(BlockingL2Adapter):
    capabilities = Capability.DELETE
    max_object_bytes = 100
    script: Script

    def store(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        return self.script.play("store", DONE)  # type: ignore[return-value]

    def load(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        return self.script.play("load", DONE)  # type: ignore[return-value]

    def contains(self, key: ObjectKey) -> bool:
        return self.script.play("contains", True)  # type: ignore[return-value]

    def delete(self, key: ObjectKey) -> Outcome:
        return self.script.play("delete", DONE)  # type: ignore[return-value]

    def is_transient(self, error: Exception) -> bool:
        return self.script.transient(error) if self.script.transient else super().is_transient(error)


class OnALoop(AsyncL2Adapter):
    capabilities = Capability.DELETE
    max_object_bytes = 100
    script: Script

    async def store(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        return self.script.play("store", DONE)  # type: ignore[return-value]

    async def load(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        return self.script.play("load", DONE)  # type: ignore[return-value]

    async def contains(self, key: ObjectKey) -> bool:
        return self.script.play("contains", True)  # type: ignore[return-value]

    async def delete(self, key: ObjectKey) -> Outcome:
        return self.script.play("delete", DONE)  # type: ignore[return-value]

    def is_transient(self, error: Exception) -> bool:
        return self.script.transient(error) if self.script.transient else super().is_transient(error)


Adapter = OnThreads | OnALoop


@pytest.fixture
def retry() -> RetryPolicy:
    return RetryPolicy(3, delay_seconds=0.0, budget=RetryBudget(operations_per_retry=10, reserve=4))


@pytest.fixture
def breaker(clock: FakeClock) -> CircuitBreaker:
    return CircuitBreaker(clock, threshold=3, cool_down_seconds=1.0)


@pytest.fixture(params=[OnThreads, OnALoop])
def adapter(
    request: pytest.FixtureRequest,
    memory: BorrowedMemory,
    clock: FakeClock,
    retry: RetryPolicy,
    breaker: CircuitBreaker,
) -> Iterator[Adapter]:
    context = adapter_context(memory, name="scripted", clock=clock)
    adapter = request.param(context, 1, breaker=breaker, retry=retry)
    adapter.script = Script()
    yield adapter
    adapter.close(WAIT_SECONDS)


@pytest.fixture
def driver(adapter: Adapter) -> L2Driver:
    return L2Driver(adapter)


@pytest.fixture
def script(adapter: Adapter) -> Script:
    return adapter.script


def every_verb(driver: L2Driver, memory: BorrowedMemory) -> list[Outcome]:
    item = (A, memory.lend(64))
    return [*driver.store(item), *driver.load(item), *driver.has(A), *driver.delete(A)]


# Retries.


@pytest.mark.parametrize("error", [TimeoutError("slow"), ConnectionResetError("gone"), BrokenPipeError()])
def test_what_may_pass_is_tried_again(
    driver: L2Driver, script: Script, memory: BorrowedMemory, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    script.next = [error, error]
    assert driver.load((A, memory.lend(64))) == (DONE,)
    assert script.calls == ["load"] * 3
    assert caplog.records == []


def test_every_verb_is_tried_again(driver: L2Driver, script: Script, memory: BorrowedMemory) -> None:
    item = (A, memory.lend(64))
    calls: dict[str, Callable[[], tuple[Outcome, ...]]] = {
        "store": lambda: driver.store(item),
        "load": lambda: driver.load(item),
        "contains": lambda: driver.has(A),
        "delete": lambda: driver.delete(A),
    }
    for verb, call in calls.items():
        script.calls.clear()
        script.next = [TimeoutError()]
        assert call() == (DONE,)
        assert script.calls == [verb] * 2


def test_what_does_not_pass_by_itself_is_not_tried_again(
    driver: L2Driver, script: Script, memory: BorrowedMemory, caplog: pytest.LogCaptureFixture
) -> None:
    script.next = [OSError(5, "Input/output error")]
    assert driver.load((A, memory.lend(64))) == (FAILED,)
    assert script.calls == ["load"]
    assert "Input/output error" in caplog.text


def test_the_author_says_what_may_pass(driver: L2Driver, script: Script, memory: BorrowedMemory) -> None:
    script.transient = lambda error: isinstance(error, KeyError)
    script.next = [KeyError("throttled")]
    assert driver.load((A, memory.lend(64))) == (DONE,)
    script.next = [TimeoutError()]
    assert driver.load((A, memory.lend(64))) == (FAILED,)


def test_a_classification_that_raises_means_no(
    driver: L2Driver, script: Script, memory: BorrowedMemory, caplog: pytest.LogCaptureFixture
) -> None:
    script.transient = lambda error: bool(1 // 0)
    script.next = [TimeoutError()]
    assert driver.load((A, memory.lend(64))) == (FAILED,)
    assert "is_transient raised" in caplog.text


def test_retries_end_with_the_budget_and_failures_are_reported(
    driver: L2Driver, script: Script, memory: BorrowedMemory, retry: RetryPolicy
) -> None:
    script.next = [TimeoutError()] * 100
    assert driver.load((A, memory.lend(64))) == (FAILED,)
    assert driver.load((A, memory.lend(64))) == (FAILED,)
    assert retry.budget.retries_left == 0
    script.calls.clear()
    assert driver.load((A, memory.lend(64))) == (FAILED,)
    assert script.calls == ["load"]


@pytest.mark.parametrize("retry", [RetryPolicy(3, delay_seconds=600.0, delay_seconds_max=600.0)])
def test_close_does_not_wait_for_a_retry(
    driver: L2Driver, adapter: Adapter, script: Script, memory: BorrowedMemory, retry: RetryPolicy
) -> None:
    script.next = [TimeoutError()]
    job = adapter.submit_load([(A, memory.lend(64))])  # type: ignore[list-item]
    assert script.called.wait(WAIT_SECONDS)
    begin = time.monotonic()
    adapter.close(WAIT_SECONDS)
    assert time.monotonic() - begin < WAIT_SECONDS / 2
    done = driver.done(job)
    assert done.outcomes == (FAILED,)
    assert done.released
    assert script.calls == ["load"]


# The breaker.


def test_a_backend_that_only_fails_is_left_alone_and_asked_again_when_time_has_passed(
    driver: L2Driver, adapter: Adapter, script: Script, memory: BorrowedMemory, clock: FakeClock
) -> None:
    script.next = [OSError("down")] * 4
    item = (A, memory.lend(64))
    assert [*driver.load(item), *driver.store(item), *driver.has(A)] == [FAILED] * 3
    script.calls.clear()
    assert every_verb(driver, memory) == [FAILED] * 4
    assert script.calls == []
    assert adapter.circuit == CircuitStatus(CircuitState.OPEN, 3, 1, 1.0)

    clock.advance(1.0)
    assert every_verb(driver, memory) == [FAILED] * 4
    assert script.calls == ["store"]  # the probe; it takes the last of the failures
    assert adapter.circuit == CircuitStatus(CircuitState.OPEN, 4, 2, 2.0)

    clock.advance(2.0)
    assert every_verb(driver, memory) == [DONE] * 4
    assert adapter.circuit == CircuitStatus(CircuitState.CLOSED, 0, 2, None)


def state_of(adapter: Adapter) -> str:
    return adapter.circuit.state.value


@pytest.mark.parametrize("kind", [OnThreads, OnALoop])
def test_a_backend_that_only_fails_to_write_is_read_on(
    kind: type[Adapter], memory: BorrowedMemory, clock: FakeClock
) -> None:
    """As a medium that has become read-only."""
    adapter = kind(adapter_context(memory, name="scripted", clock=clock), 1)
    adapter.script = script = Script()
    driver, item = L2Driver(adapter), (A, memory.lend(64))
    try:
        script.next = [OSError("read-only")] * FAILURES_MAX
        assert [driver.store(item) for _ in range(FAILURES_MAX)] == [(FAILED,)] * FAILURES_MAX
        assert state_of(adapter) == "open"
        script.calls.clear()
        assert every_verb(driver, memory) == [FAILED, DONE, DONE, FAILED]
        assert script.calls == ["load", "contains"]
        assert state_of(adapter) == "open", "what was read says nothing about writing"
        clock.advance(COOL_DOWN_SECONDS)
        assert every_verb(driver, memory) == [DONE] * 4
        assert state_of(adapter) == "closed"
    finally:
        adapter.close(WAIT_SECONDS)


def test_no_operation_tries_again_once_the_others_have_found_the_backend_down(
    driver: L2Driver, script: Script, memory: BorrowedMemory, breaker: CircuitBreaker
) -> None:
    def meanwhile_the_others_fail(error: Exception) -> bool:
        while (permit := breaker.admit()) is not None:
            breaker.failed(permit)
        return True

    script.transient = meanwhile_the_others_fail
    script.next = [TimeoutError()]
    assert driver.load((A, memory.lend(64))) == (FAILED,)
    assert script.calls == ["load"]


def test_a_lookup_that_was_refused_keeps_no_pin(driver: L2Driver, script: Script, clock: FakeClock) -> None:
    script.next = [OSError("down")] * 3
    assert driver.lookup(A, A, A, A) == (FAILED,) * 4
    clock.advance(1.0)
    assert driver.delete(A) == (DONE,)


@pytest.mark.parametrize("answer", [MISSING, REJECTED, Outcome.DAMAGED, Outcome.FOREIGN])
def test_what_a_healthy_backend_answers_is_not_a_failure(
    driver: L2Driver, adapter: Adapter, script: Script, memory: BorrowedMemory, answer: Outcome
) -> None:
    script.next = [answer] * 10
    for _ in range(10):
        assert driver.load((A, memory.lend(64))) == (answer,)
    assert adapter.circuit.failures_in_a_row == 0


@pytest.mark.parametrize("answer", [FAILED, Outcome.TIMED_OUT])
def test_what_the_author_calls_a_failure_counts_and_is_not_tried_again(
    driver: L2Driver, adapter: Adapter, script: Script, memory: BorrowedMemory, answer: Outcome
) -> None:
    script.next = [answer] * 2
    assert driver.load((A, memory.lend(64))) == (answer,)
    assert adapter.circuit.failures_in_a_row == 1
    assert script.calls == ["load"]


def test_an_author_who_leaves_fails_that_object_alone(
    driver: L2Driver, script: Script, memory: BorrowedMemory, caplog: pytest.LogCaptureFixture
) -> None:
    script.next = [SystemExit(1)]
    assert driver.load((A, memory.lend(64))) == (FAILED,)
    assert driver.load((A, memory.lend(64))) == (DONE,)


@pytest.mark.parametrize(("verb", "answer"), [("has", 1), ("has", None), ("load", True), ("load", "done")])
def test_an_answer_of_another_type_is_a_failure_with_its_name(
    driver: L2Driver,
    script: Script,
    memory: BorrowedMemory,
    verb: str,
    answer: object,
    caplog: pytest.LogCaptureFixture,
) -> None:
    script.next = [answer]
    assert (driver.has(A) if verb == "has" else driver.load((A, memory.lend(64)))) == (FAILED,)
    assert f"returned {answer!r} where a value of {'bool' if verb == 'has' else 'Outcome'} belongs" in caplog.text


# Size.


def test_an_object_that_is_too_long_is_rejected_without_asking(
    driver: L2Driver, script: Script, memory: BorrowedMemory
) -> None:
    assert driver.store((A, memory.lend(100)), (B, memory.lend(101)), (C, memory.lend(99))) == (DONE, REJECTED, DONE)
    assert script.calls == ["store"] * 2
