"""What the algorithms are made of."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_policies.structures.columns import Columns
from lmcache_policies.structures.frequency_sketch import COUNT_MAX, FrequencySketch
from lmcache_policies.structures.ghost_keys import GhostKeys
from lmcache_policies.structures.slot_lists import END, SlotLists


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 2))))
def test_lists_are_lists(steps: list[tuple[int, int]]) -> None:
    columns = Columns()
    lists = SlotLists(columns)
    columns.make_room(8)
    numbers = [lists.new() for _ in range(2)]
    model: list[list[int]] = [[], []]
    for slot, target in steps:  # target 2: out
        if lists.list_of(slot) != END:
            model[lists.remove(slot)].remove(slot)
        if target < 2:
            lists.append(slot, numbers[target])
            model[target].append(slot)
        for number, expected in zip(numbers, model, strict=True):
            assert list(lists.from_oldest(number)) == expected
            assert list(lists.from_newest(number)) == expected[::-1]
            assert lists.length(number) == len(expected)
            assert lists.oldest(number) == (expected[0] if expected else END)
            assert lists.newest(number) == (expected[-1] if expected else END)


def test_a_list_may_grow_while_it_is_walked() -> None:
    columns = Columns()
    lists = SlotLists(columns)
    columns.make_room(4)
    number = lists.new()
    lists.append(0, number)
    walk = lists.from_oldest(number)
    assert next(walk) == 0
    lists.append(3, number)
    assert list(walk) == [3]


def test_numbers_of_dropped_lists_are_used_again_and_full_lists_are_not_dropped() -> None:
    columns = Columns()
    lists = SlotLists(columns)
    columns.make_room(1)
    first = lists.new()
    lists.drop(first)
    assert lists.new() == first
    lists.append(0, first)
    with pytest.raises(AssertionError):
        lists.drop(first)


def test_columns_of_one_name_are_one_and_grow_together() -> None:
    columns = Columns()
    early = columns.numbers("early", "Q")
    columns.make_room(3)
    late, names = columns.numbers("late", "b"), columns.objects("names")
    assert columns.numbers("early", "Q") is early
    assert columns.objects("names") is names
    early[2], late[2], names[2] = 7, -1, b"x"
    columns.make_room(4)
    assert len(early) == len(late) == len(names) == len(columns) == 6
    assert (early[2], late[2], names[2], early[5], late[5], names[5]) == (7, -1, b"x", 0, 0, None)


def test_ghosts_are_taken_once_and_the_oldest_is_forgotten() -> None:
    ghosts = GhostKeys()
    for key in (b"a", b"b", b"c", b"a"):
        ghosts.add(key)
    ghosts.trim(2)
    assert not ghosts.take(b"b")
    assert ghosts.take(b"a")
    assert not ghosts.take(b"a")
    assert not ghosts.take(None)
    ghosts.trim(-1)
    assert len(ghosts) == 0


def test_an_estimate_is_not_below_the_count_and_mostly_right() -> None:
    sketch = FrequencySketch()
    sketch.make_room(2000)
    numbers = random.Random(5)
    uses = Counter(int(numbers.paretovariate(0.8)) % 2000 for _ in range(8000))
    for number, count in uses.items():
        for _ in range(count):
            sketch.add(number.to_bytes(36, "big"))
    wrong = 0
    for number, count in uses.items():
        estimate = sketch.estimate(number.to_bytes(36, "big"))
        assert estimate >= min(count, COUNT_MAX)
        wrong += estimate != min(count, COUNT_MAX)
    assert wrong <= 0.05 * len(uses)


def test_the_sketch_keeps_its_counts_when_it_grows_and_halves_them_in_time() -> None:
    sketch = FrequencySketch()
    for _ in range(6):
        sketch.add(b"often")
    sketch.make_room(1000)
    assert sketch.estimate(b"often") == 6
    for number in range(10 * 1024):
        sketch.add(number.to_bytes(4, "big"))
    assert sketch.estimate(b"never") <= 10
    assert sketch.estimate(None) == 0
    before = FrequencySketch()
    for _ in range(10 * 64 - 1):
        before.add(b"always")
    assert before.estimate(b"always") == COUNT_MAX
    before.add(b"always")
    assert before.estimate(b"always") == COUNT_MAX // 2
    for _ in range(3):  # half as many uses again until the next time
        before.add(b"always")
    assert before.estimate(b"always") == COUNT_MAX // 2 + 3
