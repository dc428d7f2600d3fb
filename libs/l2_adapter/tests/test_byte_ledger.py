from __future__ import annotations

import threading
import time

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lmcache_l2_adapter.byte_ledger import ByteLedger

sizes = st.integers(0, 40)


class AgainstTwoLists(RuleBasedStateMachine):
    """The model keeps every single amount; the ledger only sums."""

    @initialize(capacity=st.none() | st.integers(0, 100))
    def start(self, capacity: int | None) -> None:
        self.capacity = capacity
        self.ledger = ByteLedger(capacity)
        self.kept: list[int] = []
        self.promised: list[int] = []
        self.adopted = 0

    @rule(size=sizes)
    def reserve(self, size: int) -> None:
        fits = self.capacity is None or sum(self.kept) + sum(self.promised) + size <= self.capacity
        assert self.ledger.reserve(size) is fits
        if fits:
            self.promised.append(size)

    @rule(data=st.data(), is_written=st.booleans())
    def finish_a_write(self, data: st.DataObject, is_written: bool) -> None:
        if not self.promised:
            return
        size = self.promised.pop(data.draw(st.integers(0, len(self.promised) - 1)))
        if is_written:
            self.ledger.commit(size)
            self.kept.append(size)
        else:
            self.ledger.release(size)

    @rule(size=sizes)
    def adopt(self, size: int) -> None:
        self.ledger.adopt(size)
        self.kept.append(size)
        self.adopted += size

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        if self.kept:
            self.ledger.drop(self.kept.pop(data.draw(st.integers(0, len(self.kept) - 1))))

    @rule(excess=st.integers(1, 5))
    def what_was_never_entered_is_refused_and_changes_nothing(self, excess: int) -> None:
        for call, most in (
            (self.ledger.drop, sum(self.kept)),
            (self.ledger.commit, sum(self.promised)),
            (self.ledger.release, sum(self.promised)),
        ):
            with pytest.raises(ValueError, match=str(most)):
                call(most + excess)
        for take in (self.ledger.reserve, self.ledger.adopt, self.ledger.drop, self.ledger.commit, self.ledger.release):
            with pytest.raises(ValueError, match=f"size of -{excess} bytes"):
                take(-excess)

    @invariant()
    def they_agree(self) -> None:
        assert self.ledger.used_bytes == sum(self.kept)
        assert self.ledger.reserved_bytes == sum(self.promised)
        if self.capacity is not None:
            assert self.ledger.used_bytes + self.ledger.reserved_bytes <= self.capacity + self.adopted


TestAgainstTwoLists = AgainstTwoLists.TestCase


def test_what_many_threads_enter_and_take_back_adds_up() -> None:
    ledger = ByteLedger(1_000)
    barrier = threading.Barrier(8)

    def write(seed: int) -> None:
        barrier.wait(30)
        for number in range(2_000):
            size = (seed * 7 + number * 13) % 300
            if not ledger.reserve(size):
                continue
            if number % 3:
                ledger.commit(size)
                ledger.drop(size)
            else:
                ledger.release(size)

    threads = [threading.Thread(target=write, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (ledger.used_bytes, ledger.reserved_bytes) == (0, 0)


class Slow(int):
    """A size that takes its time to be added: long enough for every other writer to look at the same sum."""

    def __radd__(self, other: int) -> int:
        time.sleep(0.01)
        return other + int(self)


def test_of_many_who_want_the_last_room_one_gets_it() -> None:
    ledger = ByteLedger(10)
    barrier = threading.Barrier(4)
    reserved: list[bool] = []

    def ask() -> None:
        barrier.wait(30)
        reserved.append(ledger.reserve(Slow(10)))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(reserved) == [False, False, False, True]


def test_a_capacity_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="-1 bytes; give 0 or more, or None"):
        ByteLedger(-1)
