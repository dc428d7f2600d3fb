"""Tenants do not push out one another."""

from __future__ import annotations

import random

import pytest

from lmcache_devkit.policy_model import LARGE, SMALL, ModelledPolicy
from lmcache_policies.eviction.isolated_lru import open_isolated_lru

ALL = 10**9


@pytest.fixture
def modelled() -> ModelledPolicy:
    return ModelledPolicy(open_isolated_lru(None))


def used(modelled: ModelledPolicy, salt: str) -> int:
    return sum(live.slot_bytes for live in modelled.live.values() if live.salt == salt)


def test_a_tenant_alone_may_use_everything_and_has_plain_lru(modelled: ModelledPolicy) -> None:
    modelled.insert([0, 1], salt="a")
    modelled.insert([2], LARGE, "a")
    modelled.insert([3], salt="a")
    modelled.access([1])
    assert modelled.victims(ALL) == [0, 2, 3, 1]


def test_space_comes_from_the_largest_user_until_all_are_alike(modelled: ModelledPolicy) -> None:
    modelled.insert([0, 1], salt="small")
    modelled.insert(range(10, 14), salt="middle")
    modelled.insert(range(20, 28), salt="large")
    assert modelled.victims(4 * SMALL) == [27, 26, 25, 24]
    # Then from both of those that use most, the one that was touched longest ago first.
    assert modelled.victims(8 * SMALL) == [27, 26, 25, 24, 13, 23, 12, 22]
    assert set(modelled.victims(8 * SMALL)).isdisjoint([0, 1])


def test_a_tenant_within_its_fair_share_loses_nothing_however_many_come(modelled: ModelledPolicy) -> None:
    numbers = random.Random(3)
    modelled.insert(range(5), salt="quiet")
    free = list(range(5, 60))
    for step in range(600):
        if not free:
            free = modelled.evict(numbers.randint(1, 6) * SMALL)
        modelled.insert([free.pop()], salt=f"loud {step % 3}")
    assert used(modelled, "quiet") == 5 * SMALL


def test_a_tenant_above_its_fair_share_makes_room_for_one_below(modelled: ModelledPolicy) -> None:
    modelled.insert(range(40), salt="early")
    free = modelled.evict(SMALL)
    for _ in range(200):
        modelled.insert([free.pop()], salt="late")
        free = free or modelled.evict(SMALL)
    assert used(modelled, "early") // SMALL in (19, 20)


def test_bytes_count_and_not_objects(modelled: ModelledPolicy) -> None:
    modelled.insert([0, 1], LARGE, "few")
    modelled.insert(range(2, 7), SMALL, "many")
    assert modelled.victims(1) == [1]


def test_those_over_their_quota_pay_first_and_it_is_not_counted_twice(modelled: ModelledPolicy) -> None:
    modelled.insert(range(4), salt="a")
    modelled.insert(range(10, 16), salt="b")
    assert modelled.victims(0, None, {"a": 2 * SMALL}) == [3, 2]
    assert modelled.victims(SMALL, None, {"a": SMALL, "absent": SMALL}) == [3, 15]
    assert modelled.victims(0, {SMALL: 2 * SMALL}, {"b": SMALL}) == [15, 14, 3]


def test_a_waiting_store_takes_its_size_from_the_largest_user(modelled: ModelledPolicy) -> None:
    modelled.insert([0, 1], LARGE, "a")
    modelled.insert([2, 3], LARGE, "b")
    modelled.insert(range(10, 20), SMALL, "b")
    assert modelled.victims(0, {LARGE: 1}) == [3]
    assert modelled.victims(0, {SMALL: 1}) == [19]


def test_when_all_of_the_large_ones_is_held_the_others_make_room(modelled: ModelledPolicy) -> None:
    modelled.insert(range(8), salt="large")
    modelled.insert([10, 11], salt="small")
    modelled.held.update(range(8))
    assert modelled.victims(SMALL) == [11]


def test_tenants_that_have_nothing_are_forgotten(modelled: ModelledPolicy) -> None:
    policy = open_isolated_lru(None)
    modelled = ModelledPolicy(policy)
    for tenant in range(100):
        modelled.insert([1, 2], salt=f"tenant {tenant}")
        modelled.remove([1, 2])
    assert not policy._groups  # type: ignore[attr-defined]
    assert len(policy._lists._length) == 1  # type: ignore[attr-defined]
