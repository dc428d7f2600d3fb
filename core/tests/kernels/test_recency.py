"""Both orders of last use, against a list."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmcache_core.kernels.choice import Kernels
from lmcache_core.kernels.interfaces import Recency

SLOTS = 300
OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["insert", "touch", "touch", "touch", "remove", "scan"]), st.integers(0, 2**32)),
    min_size=15,
    max_size=80,
)


def walk(recency: Recency, group: int, steps: int) -> list[int]:
    found, position = [], 0
    while position >= 0:
        slots, position = recency.scan(group, position, steps)
        assert len(slots) <= steps
        found += slots
    return found


@settings(max_examples=60, deadline=None)
@given(operations=OPERATIONS)
def follow(kernels: Kernels, operations: list[tuple[str, int]]) -> None:
    recency, model, groups = kernels.recency(), list[int](), dict[int, int]()
    for name, seed in operations:
        dice = random.Random(seed)
        batch = dice.sample(range(SLOTS), dice.choice([0, 5, 200, SLOTS]))
        group = dice.randint(1, 3)
        if name == "insert":
            recency.insert(batch, group)
            groups.update(dict.fromkeys(batch, group))
            known = batch
        elif name == "touch":
            known = []
            for _ in range(5):  # as often as it takes to have old entries cleaned up
                touched = dice.sample(batch, dice.randint(0, len(batch)))
                recency.touch([*touched, SLOTS + 5])
                news = [slot for slot in touched if slot in groups]
                known = news + [slot for slot in known if slot not in set(news)]
        elif name == "remove":
            recency.remove([*batch, SLOTS + 5])
            model = [slot for slot in model if slot not in set(batch)]
            for slot in batch:
                groups.pop(slot, None)
            continue
        else:
            among = dice.randint(0, 3)
            expected = [slot for slot in model if not among or groups[slot] == among]
            assert walk(recency, among, dice.choice([1, 7, 5000])) == expected
            continue
        moved = set(known)
        model = [slot for slot in model if slot not in moved] + known[::-1]
    assert walk(recency, 0, 64) == model
    assert [recency.group(slot) for slot in range(SLOTS + 10)] == [groups.get(slot, 0) for slot in range(SLOTS + 10)]


def test_it_keeps_the_order_of_a_list(kernels: Kernels) -> None:
    follow(kernels)


def test_what_is_dead_is_cleaned_up(kernels: Kernels) -> None:
    """After a hundred times as many touches as slots, a walk has not many more steps than there are slots."""
    recency = kernels.recency()
    recency.insert(range(1000), 1)
    for _ in range(100):
        recency.touch(range(1, 1000))
    recency.remove(range(500, 1000))
    slots, position = recency.scan(0, 0, 8000)
    assert slots == [0, *range(499, 0, -1)]
    assert position == -1


def test_the_oldest_is_found_in_a_few_steps_whatever_is_being_cleaned_up(kernels: Kernels) -> None:
    """Objects come and go for long; a scan that walks over what is dead would take thousands of steps each time."""
    recency, calls, rounds = kernels.recency(), 0, 1000
    recency.insert(range(2000), 1)
    for _ in range(rounds):
        slots, position = list[int](), 0
        while not slots and position >= 0:
            slots, position = recency.scan(0, position, 16)
            calls += 1
        recency.remove(slots)
        recency.touch(range(1000, 1020))
        recency.insert(slots, 1)
    assert calls <= 4 * rounds


def test_a_class_that_was_empty_is_found_again_after_a_clean_up(kernels: Kernels) -> None:
    recency = kernels.recency()
    recency.insert(range(100), 1)
    recency.insert([200], 2)
    for _ in range(12):
        recency.touch(range(100))
    recency.remove([200])
    assert walk(recency, 2, 64) == []  # it is known from here on that nothing of this class is in the log
    for _ in range(6):
        recency.touch(range(100))
    recency.insert([200], 2)
    assert walk(recency, 2, 64) == [200]


def test_of_one_batch_the_first_is_the_newest(kernels: Kernels) -> None:
    recency = kernels.recency()
    recency.insert([4, 5, 6], 1)
    recency.touch([5, 6])
    assert walk(recency, 0, 10) == [4, 6, 5]


@pytest.mark.parametrize("slots", [[0], [70_000], [70_000, 3]])
def test_any_slot_number_will_do(kernels: Kernels, slots: list[int]) -> None:
    recency = kernels.recency()
    recency.insert(slots, 65_535)
    assert walk(recency, 65_535, 1) == slots[::-1]
    assert recency.group(slots[0]) == 65_535
    assert recency.group(100_000) == 0
