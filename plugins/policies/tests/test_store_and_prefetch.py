"""What the store policies and the prefetch policy are there for."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from lmcache_core import AdapterFacts, Bitmap, Capability
from lmcache_devkit.store_policy_suite import stored
from lmcache_policies.prefetch.retain import open_retain
from lmcache_policies.store.second_use import SecondUseSettings, open_second_use
from lmcache_policies.store.skip_l1 import open_skip_l1
from lmcache_policies.structures.seen_filter import SeenFilter

UP, DOWN = (AdapterFacts(name, Capability.NONE, name == "up") for name in ("up", "down"))


def test_skip_l1_drops_objects_unless_no_adapter_took_them() -> None:
    plan = open_skip_l1(None).plan(stored(range(2)), [UP, DOWN, UP])
    assert plan.targets == ((0, 2), (0, 2))
    assert plan.drop_from_l1
    assert not open_skip_l1(None).plan(stored(range(2)), [DOWN]).drop_from_l1


def test_second_use_stores_what_comes_again() -> None:
    policy = open_second_use(SecondUseSettings())
    assert policy.plan(stored(range(3)), [UP, DOWN, UP]).targets == ((), (), ())
    plan = policy.plan(stored(range(1, 4)), [UP, DOWN, UP])
    assert plan.targets == ((0, 2), (0, 2), ())
    assert not plan.drop_from_l1


def test_second_use_stores_what_is_hit_and_only_once() -> None:
    policy = open_second_use(SecondUseSettings(first_slow_adapter=1))
    hit = [item._replace(hit=True) for item in stored(range(2))]
    assert policy.plan(stored(range(2)), [UP, UP]).targets == ((0,), (0,))
    assert policy.plan(hit[:1], [UP, DOWN]).targets == ((),), "not counted while no adapter can take it"
    assert policy.plan(hit, [UP, UP]).targets == ((1,), (1,)), "the fast one has it"
    assert policy.plan(hit, [UP, UP]).targets == ((), ())


def test_second_use_leaves_fast_adapters_alone() -> None:
    policy = open_second_use(SecondUseSettings(first_slow_adapter=1))
    assert policy.plan(stored(range(1)), [UP, UP, UP]).targets == ((0,),)
    assert policy.plan(stored(range(1)), [UP, UP, UP]).targets == ((0, 1, 2),)
    assert policy.plan(stored(range(1)), [DOWN, UP, DOWN]).targets == ((1,),)


def test_second_use_forgets_what_was_met_long_ago() -> None:
    policy = open_second_use(SecondUseSettings(remembered_objects=1024))
    policy.plan(stored(range(1)), [UP])
    for begin in range(1, 1000, 100):
        policy.plan(stored(range(begin, begin + 100)), [UP])
    assert policy.plan(stored(range(1)), [UP]).targets == ((0,),)
    for begin in range(10_000, 14_000, 100):
        policy.plan(stored(range(begin, begin + 100)), [UP])
    assert policy.plan(stored(range(1)), [UP]).targets == ((),)


def test_the_filter_remembers_what_it_promises_and_seldom_more() -> None:
    seen = SeenFilter(4096)
    names = [item.chunk_hash[:16] for item in stored(range(20_000))]
    mistaken = sum(seen.meet(name) for name in names)
    assert mistaken <= 20_000 / 200
    assert all(seen.meet(name) for name in names[-4096:])


def test_retain_takes_the_first_healthy_adapter_and_keeps_what_it_brings() -> None:
    found = [Bitmap(4, [0]), Bitmap(4, [0, 1]), Bitmap(4, [0, 1, 2])]
    plan = open_retain(None).plan(found, [UP, UP, UP])
    assert plan.sources == (0, 1, 2, None)
    assert plan.retain
    assert open_retain(None).plan(found, [DOWN, UP, UP]).sources == (1, 1, 2, None)


@pytest.mark.parametrize(("field", "value"), [("first_slow_adapter", -1), ("remembered_objects", 0), ("remember", 5)])
def test_settings_that_make_no_sense_are_refused(field: str, value: int) -> None:
    with pytest.raises(ValidationError, match=field):
        SecondUseSettings.model_validate({field: value})
