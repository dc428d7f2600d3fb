"""Stretches of a line against a set of points."""

from __future__ import annotations

import itertools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lmcache_client.extents import Extent, Extents

END = 60
extents = st.builds(Extent, st.integers(0, END), st.integers(0, END // 2))


def points(extent: Extent) -> set[int]:
    return set(range(extent.offset, extent.end))


class ExtentsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.extents = Extents()
        self.points: set[int] = set()

    @rule(piece=extents)
    def add(self, piece: Extent) -> None:
        self.extents.add(piece)
        self.points |= points(piece)

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.points:
            whole = self.extents.piece_at(data.draw(st.sampled_from(sorted(self.points))))
            assert whole is not None
            offset = data.draw(st.integers(whole.offset, whole.end - 1))
            piece = Extent(offset, data.draw(st.integers(1, whole.end - offset)))
            self.extents.remove(piece)
            self.points -= points(piece)

    @rule(within=extents)
    def look_within(self, within: Extent) -> None:
        missing = [points(gap) for gap in self.extents.missing(within)]
        there = [points(part) for part in self.extents.overlap(within)]
        assert set().union(*missing) == points(within) - self.points
        assert set().union(*there) == points(within) & self.points
        assert sum(map(len, missing)) + sum(map(len, there)) == within.length
        assert all(missing)
        assert all(there)

    @rule(length=st.integers(1, END))
    def look_for(self, length: int) -> None:
        found = self.extents.first_fit(length)
        fitting = [piece for piece in self.extents if piece.length >= length]
        if fitting:
            assert found == fitting[0]
        else:
            assert found == max(self.extents, key=lambda piece: piece.length, default=None)

    @invariant()
    def they_are_the_points(self) -> None:
        pieces = list(self.extents)
        assert set().union(*map(points, pieces)) == self.points
        assert self.extents.total == len(self.points)
        assert len(self.extents) == len(pieces)
        for left, right in itertools.pairwise(pieces):
            assert left.end < right.offset, "neighbours were not merged"
        for point in range(END):
            assert (self.extents.piece_at(point) is not None) == (point in self.points)


ExtentsMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestExtents = ExtentsMachine.TestCase
