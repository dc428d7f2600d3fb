"""However calls, failures, deaths and time are interleaved, at most one contender believes that it owns the backend."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from libs.object_remote.tests.owner_world import LEASE, Contender, How, SteppedRecords
from lmcache_devkit.fake_clock import FakeClock

CONTENDERS_MAX = 4
SLOWEST = LEASE / 10 - 0.001


class OwnershipMachine(RuleBasedStateMachine):
    conditional = True
    evidence = True
    bounded_verbs: tuple[str, ...] = ("remove",)
    """Calls that this world lets take effect within a tenth of a lease."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.records = SteppedRecords(self.clock, conditional=self.conditional)
        self.alive: set[int] = set()
        self.contenders: list[Contender] = []
        self.number = 0

    @initialize(others=st.integers(0, 2), ticks=st.integers(0, 12))
    def begin(self, others: int, ticks: int) -> None:
        """One owns it, as a rule, when others come."""
        self.start()
        self.run_all_but(-1, 2.9, ticks)
        for _ in range(others):
            self.start()

    @precondition(lambda self: len(self.contenders) < CONTENDERS_MAX)
    @rule()
    def start(self) -> None:
        self.number += 1
        self.contenders.append(Contender(self.number, self.records, self.clock, self.alive, evidence=self.evidence))

    @precondition(lambda self: self.contenders)
    @rule(who=st.integers(0, CONTENDERS_MAX - 1), times=st.integers(1, 8), how=st.sampled_from(How))
    def step(self, who: int, times: int, how: How) -> None:
        contender = self.contenders[who % len(self.contenders)]
        for _ in range(times - 1):
            contender.step()
            self.at_most_one()
        contender.step(how)
        self._bury()

    @precondition(lambda self: len(self.contenders) > 2)
    @rule(who=st.integers(0, CONTENDERS_MAX - 1))
    def stop(self, who: int) -> None:
        self.contenders[who % len(self.contenders)].stop()

    @precondition(lambda self: len(self.contenders) > 2)
    @rule(who=st.integers(0, CONTENDERS_MAX - 1), effect=st.booleans())
    def kill(self, who: int, effect: bool) -> None:
        self.contenders[who % len(self.contenders)].kill(effect=effect)
        self._bury()

    @rule(seconds=st.sampled_from([0.5, 2.9, 3.0, 7.5, 12.0, 30.0, 53.9, 54.0, 60.0, 75.0]))
    def advance(self, seconds: float) -> None:
        now = self.clock.monotonic()
        waiting = [
            each.at for each in self.contenders if each.at.verb in self.bounded_verbs and not each.at.took_effect
        ]
        self.clock.advance(max(0.0, min([seconds, *(at.since + SLOWEST - now for at in waiting)])))

    @precondition(lambda self: self.contenders)
    @rule(stuck=st.integers(0, CONTENDERS_MAX), tick=st.sampled_from([1.0, 2.9, 7.0]), ticks=st.integers(10, 35))
    def run_all_but(self, stuck: int, tick: float, ticks: int) -> None:
        """Time passes evenly, and all go on, but for one that is paged out or hangs in a call (or none)."""
        for _ in range(ticks):
            self.advance(tick)
            for place, contender in enumerate(self.contenders):
                for _ in range(0 if place == stuck else 6):
                    contender.step()
                    self.at_most_one()
        self._bury()

    @invariant()
    def at_most_one(self) -> None:
        believing = [each.number for each in self.contenders if each.ownership.held]
        assert len(believing) <= 1, believing

    def _bury(self) -> None:
        self.contenders = [each for each in self.contenders if each.alive]


class UnconditionalMachine(OwnershipMachine):
    """A backend that cannot compare, and takes as long as it likes; no client can see that a process is gone."""

    conditional = False
    evidence = False


class UnconditionalWithEvidenceMachine(OwnershipMachine):
    conditional = False
    bounded_verbs = ("remove", "write")


@pytest.mark.parametrize("machine", [OwnershipMachine, UnconditionalMachine, UnconditionalWithEvidenceMachine])
@pytest.mark.slow
def test_at_most_one_believes_that_it_owns(machine: type[OwnershipMachine]) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=60, stateful_step_count=40, deadline=None))


@pytest.mark.parametrize("conditional", [True, False])
def test_an_owner_that_hangs_has_released_it_when_another_follows(conditional: bool) -> None:
    clock, alive = FakeClock(), set[int]()
    records = SteppedRecords(clock, conditional=conditional)
    first = Contender(1, records, clock, alive, evidence=False)
    _go_on(clock, [first], 3)
    assert first.ownership.held
    second = Contender(2, records, clock, alive, evidence=False)
    _go_on(clock, [first, second], 10)
    assert second.refusals
    released_at = followed = 0.0
    for _ in range(200):
        _go_on(clock, [second], 1, seconds=0.5)
        released_at = released_at or (0.0 if first.ownership.held else clock.monotonic())
        followed = followed or (clock.monotonic() if second.ownership.held else 0.0)
    assert LEASE * 0.05 < followed - released_at < LEASE * 0.5


def test_a_renewal_that_comes_too_late_is_not_believed_where_the_backend_cannot_compare() -> None:
    clock, alive = FakeClock(), set[int]()
    records = SteppedRecords(clock, conditional=False)
    first = Contender(1, records, clock, alive, evidence=False)
    _go_on(clock, [first], 3)
    second = Contender(2, records, clock, alive, evidence=False)
    _go_on(clock, [first, second], 2)
    _go_on(clock, [second], 12)  # the first is paged out, but not for so long that it has lost
    for _ in range(3):  # it has seen its own record, and is about to renew it
        first.step()
    assert first.at.verb == "write"
    for _ in range(18):
        _go_on(clock, [] if second.ownership.held else [second], 1)
    assert second.ownership.held
    for _ in range(4):
        first.step()
        assert not first.ownership.held


@pytest.mark.parametrize("conditional", [True, False])
@pytest.mark.parametrize("renews", [False, True])
def test_a_lease_begins_before_its_write_however_late_the_answer_comes(conditional: bool, renews: bool) -> None:
    """Others measure from when the record was there, which may be long before its writer gets the answer."""
    clock, alive = FakeClock(), set[int]()
    records = SteppedRecords(clock, conditional=conditional)
    first = Contender(1, records, clock, alive, evidence=False)
    _go_on(clock, [first], 3 if renews else 0)
    clock.advance(LEASE / 8 if renews else 0)
    _step_until(first, "write", took_effect=True)
    if not (conditional or renews):  # a claim is believed only when it was read again
        first.step()
        clock.advance(LEASE / 20)
        _step_until(first, "read", took_effect=True)
    second = Contender(2, records, clock, alive, evidence=False)
    _go_on(clock, [second], 10)  # it sees the new record, while the answer is late
    first.step()
    assert first.ownership.held
    for _ in range(60):
        _go_on(clock, [second], 1, seconds=1.0)
        assert not (first.ownership.held and second.ownership.held)
    assert second.ownership.held


@pytest.mark.parametrize("conditional", [True, False])
def test_of_two_that_claim_at_once_one_wins(conditional: bool) -> None:
    clock, alive = FakeClock(), set[int]()
    records = SteppedRecords(clock, conditional=conditional)
    both = [Contender(number, records, clock, alive, evidence=False) for number in (1, 2)]
    for contender in both:  # each has seen that there is none
        _step_until(contender, "write", took_effect=False)
    for contender in both:
        contender.step()
    for _ in range(10):
        _go_on(clock, both, 1)
        assert sum(contender.ownership.held for contender in both) <= 1
    assert any(contender.ownership.held for contender in both)


def test_a_claim_that_took_long_is_not_believed_where_the_backend_cannot_compare() -> None:
    """The faster process has read its own record already, and does not look again for a while."""
    clock, alive = FakeClock(), set[int]()
    records = SteppedRecords(clock, conditional=False)
    first, second = (Contender(number, records, clock, alive, evidence=False) for number in (1, 2))
    _step_until(first, "write", took_effect=False)  # it has seen that there is none, and is paged out
    _go_on(clock, [second], 3)
    assert second.ownership.held
    for _ in range(2):
        first.step()
    clock.advance(LEASE / 20)  # and its record was not replaced
    for _ in range(8):
        first.step()
        assert not first.ownership.held
    assert second.ownership.held


def _step_until(contender: Contender, verb: str, *, took_effect: bool) -> None:
    for _ in range(20):
        if (contender.at.verb, contender.at.took_effect) == (verb, took_effect):
            return
        contender.step()
    raise AssertionError(f"it never came to that: {contender.at}")


def _go_on(clock: FakeClock, contenders: list[Contender], ticks: int, seconds: float = 2.9) -> None:
    for _ in range(ticks):
        clock.advance(seconds)
        for contender in contenders:
            for _ in range(8):
                contender.step()
