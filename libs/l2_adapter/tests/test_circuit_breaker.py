from __future__ import annotations

import threading

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lmcache_core import CircuitState
from lmcache_devkit.fake_clock import FakeClock
from lmcache_l2_adapter.backend_calls import CircuitBreaker, Permit

CLOSED, OPEN, HALF_OPEN = CircuitState.CLOSED, CircuitState.OPEN, CircuitState.HALF_OPEN


def breaker_with(clock: FakeClock, threshold: int = 3) -> CircuitBreaker:
    return CircuitBreaker(clock, threshold=threshold, cool_down_seconds=1.0, cool_down_seconds_max=8.0)


def admitted(breaker: CircuitBreaker) -> Permit:
    permit = breaker.admit()
    assert permit is not None
    return permit


def opened(breaker: CircuitBreaker, threshold: int = 3) -> None:
    for _ in range(threshold):
        breaker.failed(admitted(breaker))
    assert breaker.status.state is OPEN


class AgainstAModel(RuleBasedStateMachine):
    """The model remembers each call with the number of the state change it was admitted after."""

    @initialize(threshold=st.integers(1, 4))
    def start(self, threshold: int) -> None:
        self.clock = FakeClock()
        self.threshold = threshold
        self.breaker = breaker_with(self.clock, threshold)
        self.state = CLOSED
        self.changes = 0
        self.row = 0
        self.cool_down = 1.0
        self.next_probe = 0.0
        self.calls: list[tuple[Permit, int]] = []

    def change(self, state: CircuitState) -> None:
        self.state = state
        self.changes += 1

    @rule()
    def call(self) -> None:
        permit = self.breaker.admit()
        now = self.clock.monotonic()
        if self.state is CLOSED:
            assert permit is not None
        elif now < self.next_probe:
            assert permit is None
        else:
            assert permit is not None
            self.next_probe = now + self.cool_down
            if self.state is OPEN:
                self.change(HALF_OPEN)
        if permit is not None:
            self.calls.append((permit, self.changes))

    @rule(data=st.data(), is_good=st.booleans())
    def a_call_ends(self, data: st.DataObject, is_good: bool) -> None:
        if not self.calls:
            return
        permit, since = self.calls.pop(data.draw(st.integers(0, len(self.calls) - 1)))
        is_late = since != self.changes
        assert self.breaker.is_current(permit) is not is_late
        if is_good:
            closes = not is_late and self.state is HALF_OPEN
            assert self.breaker.succeeded(permit) is closes
            if not is_late:
                self.row = 0
            if closes:
                self.change(CLOSED)
                self.cool_down = 1.0
            return
        self.row += not is_late
        opens = not is_late and (self.state is HALF_OPEN or self.row >= self.threshold)
        if opens:
            if self.state is HALF_OPEN:
                self.cool_down = min(self.cool_down * 2, 8.0)
            self.next_probe = self.clock.monotonic() + self.cool_down
            self.change(OPEN)
        assert self.breaker.failed(permit) == (self.cool_down if opens else None)

    @rule(seconds=st.sampled_from([0.25, 1.0, 2.0, 8.0]))
    def time_goes_on(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @invariant()
    def they_agree(self) -> None:
        status = self.breaker.status
        assert status.state is self.state
        assert status.failures_in_a_row == self.row
        wait = max(self.next_probe - self.clock.monotonic(), 0.0)
        assert status.retry_in_seconds == (wait if self.state is OPEN else None)


TestAgainstAModel = AgainstAModel.TestCase


def test_the_cool_down_doubles_to_its_bound_and_starts_anew_after_a_success() -> None:
    clock = FakeClock()
    breaker = breaker_with(clock)
    opened(breaker)
    for cool_down in (1.0, 2.0, 4.0, 8.0, 8.0):
        assert breaker.status.retry_in_seconds == cool_down
        clock.advance(cool_down - 0.25)
        assert breaker.admit() is None
        clock.advance(0.25)
        breaker.failed(admitted(breaker))
    clock.advance(8.0)
    assert breaker.succeeded(admitted(breaker))
    assert breaker.status.openings == 6
    opened(breaker)
    assert breaker.status.retry_in_seconds == 1.0


def test_of_many_threads_one_is_the_probe() -> None:
    for _ in range(50):
        clock = FakeClock()
        breaker = breaker_with(clock)
        opened(breaker)
        clock.advance(1.0)
        barrier = threading.Barrier(4)
        permits: list[Permit | None] = []

        def ask(
            breaker: CircuitBreaker = breaker,
            barrier: threading.Barrier = barrier,
            permits: list[Permit | None] = permits,
        ) -> None:
            barrier.wait(30)
            permits.append(breaker.admit())

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert permits.count(None) == 3


def test_a_probe_that_never_comes_back_is_not_waited_for_for_ever() -> None:
    clock = FakeClock()
    breaker = breaker_with(clock)
    opened(breaker)
    clock.advance(1.0)
    lost = admitted(breaker)
    assert breaker.admit() is None
    clock.advance(1.0)
    second = admitted(breaker)
    assert breaker.succeeded(lost)  # it was only slow: that is as good
    assert not breaker.succeeded(second)
    assert breaker.status.state is CLOSED


def test_one_success_in_between_starts_the_count_anew() -> None:
    breaker = breaker_with(FakeClock())
    for is_good in (False, False, True, False, False):
        permit = admitted(breaker)
        if is_good:
            breaker.succeeded(permit)
        else:
            breaker.failed(permit)
    assert breaker.status == (CLOSED, 2, 0, None)


@pytest.mark.parametrize("wrong", [{"threshold": 0}, {"cool_down_seconds": 0.0}, {"cool_down_seconds": 90.0}])
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="threshold >= 1"):
        CircuitBreaker(FakeClock(), **wrong)  # type: ignore[arg-type]
