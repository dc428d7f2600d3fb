from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lmcache_l2_adapter.backend_calls import RetryBudget, RetryPolicy


class BudgetAgainstAModel(RuleBasedStateMachine):
    """The model counts in fractions of a retry what the budget counts in whole tokens."""

    @initialize(per_retry=st.integers(1, 12), reserve=st.integers(1, 4))
    def start(self, per_retry: int, reserve: int) -> None:
        self.per_retry = per_retry
        self.reserve = reserve
        self.budget = RetryBudget(per_retry, reserve)
        self.available = float(reserve)
        self.operations = 0
        self.retries = 0

    @rule(count=st.integers(1, 15))
    def operations_begin(self, count: int) -> None:
        for _ in range(count):
            self.budget.deposit()
        self.operations += count
        self.available = min(self.available + count / self.per_retry, self.reserve)

    @rule()
    def retry(self) -> None:
        is_allowed = self.available > 1 - 1e-9
        assert self.budget.withdraw() is is_allowed
        if is_allowed:
            self.available -= 1
            self.retries += 1

    @invariant()
    def retries_stay_within_their_share(self) -> None:
        assert self.retries <= self.reserve + self.operations / self.per_retry
        assert self.budget.retries_left == int(self.available + 1e-9)


TestBudgetAgainstAModel = BudgetAgainstAModel.TestCase


def test_when_every_operation_fails_one_in_ten_is_retried_beyond_the_reserve() -> None:
    policy = RetryPolicy(attempts=3)
    retries = 0
    for _ in range(10_000):
        policy.budget.deposit()
        failures = 1
        while policy.next_delay(failures) is not None:
            retries += 1
            failures += 1
    assert 1_000 <= retries <= 1_010


def test_many_threads_cannot_overdraw_the_budget() -> None:
    budget = RetryBudget(operations_per_retry=10, reserve=100)
    barrier = threading.Barrier(8)
    paid: list[int] = []

    def spend() -> None:
        barrier.wait(30)
        count = 0
        for _ in range(500):
            budget.deposit()
            count += budget.withdraw()
        paid.append(count)

    threads = [threading.Thread(target=spend) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(paid) <= 100 + 8 * 500 // 10
    assert sum(paid) >= 100


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_a_delay_is_a_random_part_of_a_doubling_bound(failures: int, fraction: float) -> None:
    policy = RetryPolicy(10**6, delay_seconds=0.5, delay_seconds_max=6.0, random_fraction=lambda: fraction)
    delay = policy.next_delay(failures)
    assert delay == fraction * min(0.5 * 2 ** min(failures - 1, 20), 6.0)


def test_after_the_last_attempt_nothing_is_paid() -> None:
    policy = RetryPolicy(attempts=2)
    left = policy.budget.retries_left
    assert policy.next_delay(2) is None
    assert policy.budget.retries_left == left


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"delay_seconds": -1.0}, {"delay_seconds": 5.0}])
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="attempts >= 1"):
        RetryPolicy(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [(0, 1), (1, 0)])
def test_a_budget_that_makes_no_sense_is_refused(wrong: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="operations_per_retry >= 1"):
        RetryBudget(*wrong)
