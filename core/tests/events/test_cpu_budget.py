"""How long a thread that used more than its share rests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lmcache_core.events.subscriber_queue import BURST_SECONDS, CpuBudget


class Times:
    def __init__(self) -> None:
        self.cpu = self.clock = 0.0

    def work(self, seconds: float, used: float) -> None:
        self.clock += seconds
        self.cpu += used


def budget_of(ratio: float) -> tuple[CpuBudget, Times]:
    times = Times()
    return CpuBudget(ratio, lambda: times.cpu, lambda: times.clock), times


def test_a_burst_is_free_and_what_is_more_is_made_up_for() -> None:
    budget, times = budget_of(0.25)
    times.work(0.04, 0.04)
    assert budget.update() == 0.0
    times.work(1.0, 1.0)
    rest = budget.update()
    assert 2.7 < rest < 3.0
    times.work(rest, 0.0)
    assert budget.update() < 1e-9
    assert abs(budget.used_seconds - 1.04) < 1e-9


def test_another_thread_begins_with_what_the_first_had() -> None:
    budget, times = budget_of(0.5)
    times.work(5.0, 5.0)
    times.cpu = 0.0  # the clock of another thread
    budget.begin()
    assert budget.update() == 0.0
    assert budget.used_seconds == 0.0


@given(
    ratio=st.floats(0.01, 1.0),
    works=st.lists(st.tuples(st.floats(0.0, 2.0), st.floats(0.0, 1.0)), min_size=1, max_size=40),
)
def test_no_thread_gets_more_than_the_share_and_one_burst(ratio: float, works: list[tuple[float, float]]) -> None:
    budget, times = budget_of(ratio)
    for seconds, share in works:
        times.work(seconds, seconds * share)
        times.work(budget.update(), 0.0)
        assert budget.used_seconds <= ratio * (times.clock + BURST_SECONDS) + 1e-6
