"""Usage is what is there, whatever happens while it is counted."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lmcache_core import Usage
from lmcache_object_remote import Count, Tally


def object_id(number: int) -> bytes:
    return number.to_bytes(16, "little")


class TallyMachine(RuleBasedStateMachine):
    """A backend whose listing moves through the ids, while objects come and go on both sides of where it stands."""

    IDS = 12

    def __init__(self) -> None:
        super().__init__()
        self.tally = Tally()
        self.backend: dict[int, int] = {}
        self.counting: object | None = None
        self.count: Count | None = None
        self.at = 0
        self.known = False

    @rule(number=st.integers(0, IDS - 1), size=st.integers(1, 9))
    def store(self, number: int, size: int) -> None:
        if number not in self.backend:
            self.backend[number] = size
            self.tally.stored(object_id(number), size)

    @rule(number=st.integers(0, IDS - 1))
    def delete(self, number: int) -> None:
        if (size := self.backend.pop(number, None)) is not None:
            self.tally.deleted(object_id(number), size)

    @precondition(lambda self: self.counting is None)
    @rule()
    def begin(self) -> None:
        self.counting = self.tally.counting()
        self.count = self.counting.__enter__()
        self.at = 0

    @precondition(lambda self: self.counting is not None)
    @rule(twice=st.booleans())
    def list_some(self, twice: bool) -> None:
        assert self.count is not None
        for number in range(self.at, min(self.at + 4, self.IDS)):
            if number in self.backend:
                for _ in range(1 + twice):
                    self.count.saw(object_id(number), self.backend[number])
        self.at += 4

    @precondition(lambda self: self.counting is not None and self.at >= self.IDS)
    @rule()
    def finish(self) -> None:
        assert self.count is not None
        self.count.finish()
        self.known = True
        self.leave()

    @precondition(lambda self: self.counting is not None)
    @rule()
    def leave(self) -> None:
        """Without `finish`: the backend failed in the middle of the listing."""
        assert self.counting is not None
        self.counting.__exit__(None, None, None)  # type: ignore[attr-defined]
        self.counting = self.count = None

    @invariant()
    def usage_is_what_is_there(self) -> None:
        expected = Usage(sum(self.backend.values()), None, len(self.backend)) if self.known else None
        assert self.tally.usage() == expected


TestTally = TallyMachine.TestCase
TestTally.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)


def test_one_counting_at_a_time() -> None:
    tally = Tally()
    with tally.counting(), pytest.raises(RuntimeError), tally.counting():
        pass


def test_what_others_did_is_seen_by_the_next_counting() -> None:
    tally = Tally()
    tally.stored(object_id(1), 10)
    with tally.counting() as count:
        count.saw(object_id(2), 5)
        count.finish()
    assert tally.usage(100) == Usage(5, 100, 1)
