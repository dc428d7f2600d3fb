"""Random orders of jobs, answers and removals: what is visible has arrived, and everything is given back."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from plugins.transfer_torch.tests.cue_site import Site


class Machine(RuleBasedStateMachine):
    """What is visible was said to have arrived, and everything is given back."""

    @initialize()
    def begin(self) -> None:
        self.site = Site()

    @rule(does=st.sampled_from(["now", "fail", "later", "refuse", "twice"]))
    def does_next(self, does: str) -> None:
        self.site.device.does = does

    @rule()
    def stores(self) -> None:
        self.site.store()

    @rule()
    def retrieves(self) -> None:
        before = self.site.cached()
        if self.site.retrieve()[1]:
            assert before == 3

    @rule(arrived=st.booleans(), which=st.integers(0, 5))
    def answers(self, arrived: bool, which: int) -> None:
        if self.site.device.waiting:
            self.site.device.waiting.pop(which % len(self.site.device.waiting))(arrived)

    @rule()
    def leaves(self) -> None:
        self.site.unregister()

    @rule()
    def comes(self) -> None:
        self.site.register()

    @rule(seconds=st.sampled_from([1, 301, 601]))
    def time_passes(self, seconds: int) -> None:
        self.site.bench.clock.advance(seconds)
        self.site.bench.storage.expire()

    @rule(force=st.booleans())
    def clears(self, force: bool) -> None:
        self.site.bench.storage.clear(force)

    @invariant()
    def adds_up(self) -> None:
        if hasattr(self, "site"):
            self.site.held()
            assert self.site.status["transfers_in_flight"] == len(self.site.device.waiting)

    def teardown(self) -> None:
        if hasattr(self, "site"):
            self.site.close()


def test_any_order_of_jobs_answers_and_removals() -> None:
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=40,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
            derandomize=True,
        ),
    )
