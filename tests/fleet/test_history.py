"""The checker of histories, against trying every order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fleet.history import Operation, faults


def is_possible(operations: Sequence[Operation]) -> bool:
    """By trying every order, with each choice of unacknowledged writes that were made."""
    for order in permutations(operations):
        if any(later.ended < earlier.began for at, earlier in enumerate(order) for later in order[at + 1 :]):
            continue
        value = None
        for each in order:
            if each.writes:
                value = each.value
            elif each.value != value:
                break
        else:
            return True
    return False


@st.composite
def histories(draw: st.DrawFn) -> list[Operation]:
    times = draw(st.permutations(range(12)))
    operations = []
    for number in range(draw(st.integers(1, 6))):
        began, ended = sorted(times[2 * number : 2 * number + 2])
        writes = draw(st.booleans())
        value = number if writes else draw(st.sampled_from([None, *range(6)]))
        last = math.inf if writes and draw(st.integers(0, 3)) == 0 else ended
        operations.append(Operation(writes, value, began, last))
    return operations


@settings(max_examples=400, deadline=None)
@given(histories())
def test_it_finds_what_trying_every_order_finds(operations: list[Operation]) -> None:
    assert (not faults(operations)) == is_possible(operations)


def write(value: str, began: float, ended: float) -> Operation:
    return Operation(True, value, began, ended)


def read(value: str | None, began: float, ended: float) -> Operation:
    return Operation(False, value, began, ended)


@pytest.mark.parametrize(
    ("operations", "words"),
    [
        ([write("a", 0, 1), read("a", 2, 3), write("b", 4, 5), read("b", 6, 7)], ""),
        ([write("a", 0, 9), read(None, 1, 2), read("a", 3, 4)], ""),
        ([write("a", 0, math.inf), read(None, 1, 2), read("a", 3, 4)], ""),
        ([write("a", 0, 1), read(None, 2, 3)], "lost"),
        ([write("a", 0, 9), read("a", 1, 2), read(None, 3, 4)], "back"),
        ([write("a", 0, 1), write("b", 2, 3), read("b", 4, 5), read("a", 6, 7)], "back, after a later write"),
        ([write("a", 0, math.inf), read("a", 1, 2), read(None, 3, 4)], "back, unacknowledged"),
        ([read("a", 0, 1), write("a", 2, 3)], "before"),
        ([read("a", 0, 1)], "never written"),
    ],
)
def test_what_it_refuses(operations: list[Operation], words: str) -> None:
    assert bool(faults(operations)) == bool(words)


def test_a_value_that_is_written_twice_is_a_fault_of_the_test() -> None:
    with pytest.raises(ValueError, match="twice"):
        faults([write("a", 0, 1), write("a", 2, 3)])
