"""The LRU policy, by example and against a model that is too simple to be wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lmcache_core.builtin.lru import LeastRecentlyUsed, open_lru
from lmcache_core.contracts.offer import Offer
from lmcache_core.contracts.policies import AccessFacts, EvictionDemand, InsertFacts
from lmcache_core.kernels.choice import PURE, Kernels, choose_kernels
from lmcache_core.model.keys import HashChain, KeySpace
from lmcache_devkit.eviction_suite import EvictionPolicySuite

SPACE = KeySpace("m", 0, 0, "", 256, HashChain.BLAKE3, bytes(16))
SMALL, LARGE = 10, 100


class TestConformance(EvictionPolicySuite):
    offer = "LRU"
    bytes_per_slot_max = 40


@pytest.mark.skipif(not choose_kernels("auto").native, reason="lmcache-native is not installed, or does not fit")
class TestCompiledConformance(EvictionPolicySuite):
    offer = Offer("LRU", "Least recently used", open="core.tests.builtin.compiled_lru:open_compiled_lru")
    bytes_per_slot_max = 40


def facts(slot_bytes: int) -> InsertFacts:
    return InsertFacts(slot_bytes, SPACE, 0)


def anything(slot: int) -> bool:
    return True


def policy(*batches: Sequence[int], slot_bytes: int = SMALL) -> LeastRecentlyUsed:
    lru = LeastRecentlyUsed()
    for batch in batches:
        lru.on_insert(batch, facts(slot_bytes))
    return lru


def victims(
    lru: LeastRecentlyUsed,
    any_bytes: int = 0,
    by_size: dict[int, int] | None = None,
    allow: Callable[[int], bool] = anything,
) -> list[int]:
    return list(lru.victims(EvictionDemand(any_bytes, by_size or {}), allow))


def test_the_oldest_goes_first_and_no_more_than_asked_for() -> None:
    lru = policy([4], [2], [7])
    assert victims(lru, 1) == [4]
    assert victims(lru, 11) == [4, 2]
    assert victims(lru, 1000) == [4, 2, 7]
    assert victims(lru, 0) == []


def test_of_one_prompt_the_end_goes_first() -> None:
    lru = policy([1, 2, 3], [4, 5, 6])
    assert victims(lru, 1000) == [3, 2, 1, 6, 5, 4]
    lru.on_access([1, 2], AccessFacts())
    assert victims(lru, 1000) == [3, 6, 5, 4, 2, 1]


def test_what_was_hit_is_young_again() -> None:
    lru = policy([1], [2], [3])
    lru.on_access([1], AccessFacts())
    assert victims(lru, 1000) == [2, 3, 1]


def test_a_victim_stays_until_it_is_removed() -> None:
    lru = policy([1], [2])
    assert victims(lru, 1) == [1]
    assert victims(lru, 1) == [1]
    lru.on_remove([1])
    assert victims(lru, 1) == [2]
    lru.on_remove([2])
    assert victims(lru, 1) == []


def test_what_must_not_be_evicted_is_passed_over() -> None:
    lru = policy([1], [2], [3])
    assert victims(lru, 15, allow=lambda slot: slot != 1) == [2, 3]


def test_unknown_slots_are_ignored() -> None:
    lru = policy([1])
    lru.on_access([0, 5, 999], AccessFacts())
    lru.on_remove([0, 5, 999])
    lru.on_insert([], facts(SMALL))
    assert victims(lru, 1000) == [1]


def test_a_slot_that_is_used_again_may_have_another_size() -> None:
    lru = policy([1], [2])
    lru.on_insert([1], facts(LARGE))
    assert victims(lru, by_size={LARGE: 1}) == [1]
    assert victims(lru, by_size={SMALL: 1000}) == [2]


def test_demand_for_a_size_takes_only_that_size_and_comes_on_top() -> None:
    lru = policy([1], [2])
    lru.on_insert([3], facts(LARGE))
    lru.on_insert([4], facts(LARGE))
    assert victims(lru, by_size={LARGE: 150}) == [3, 4]
    assert victims(lru, by_size={LARGE: 1, 12345: 99}) == [3]
    assert victims(lru, 15, {LARGE: 1}) == [3, 1, 2]


def test_sizes_are_ordered_among_each_other() -> None:
    lru = policy([1])
    lru.on_insert([2], facts(LARGE))
    lru.on_insert([3], facts(SMALL))
    assert victims(lru, 10_000) == [1, 2, 3]
    lru.on_access([1], AccessFacts())
    assert victims(lru, 10_000) == [2, 3, 1]


def test_it_is_what_core_offers() -> None:
    assert isinstance(open_lru(None), LeastRecentlyUsed)


@pytest.mark.parametrize("slots", [[0], [100_000]])
def test_any_slot_number_will_do(slots: list[int]) -> None:
    assert victims(policy(slots), 1) == slots


SLOTS = st.lists(st.integers(0, 20), unique=True, max_size=6)


class AgainstAList(RuleBasedStateMachine):
    """The model is a list of (slot, size) from the oldest to the newest."""

    kernels: Kernels = PURE

    @initialize()
    def empty(self) -> None:
        self.lru = LeastRecentlyUsed(self.kernels)
        self.model: list[tuple[int, int]] = []

    @rule(slots=SLOTS, size=st.sampled_from([SMALL, LARGE]))
    def insert(self, slots: list[int], size: int) -> None:
        self.lru.on_insert(slots, facts(size))
        self.model = [entry for entry in self.model if entry[0] not in slots] + [
            (slot, size) for slot in reversed(slots)
        ]

    @rule(slots=SLOTS)
    def access(self, slots: list[int]) -> None:
        self.lru.on_access(slots, AccessFacts())
        known = dict(self.model)
        touched = [(slot, known[slot]) for slot in reversed(slots) if slot in known]
        self.model = [entry for entry in self.model if entry not in touched] + touched

    @rule(slots=SLOTS)
    def remove(self, slots: list[int]) -> None:
        self.lru.on_remove(slots)
        self.model = [entry for entry in self.model if entry[0] not in slots]

    @invariant()
    def same_order(self) -> None:
        assert victims(self.lru, 10**9) == [slot for slot, _ in self.model]

    @rule(wanted=st.integers(1, 300), odd=st.booleans())
    def choose(self, wanted: int, odd: bool) -> None:
        def allowed(slot: int) -> bool:
            return slot % 2 == odd

        expected: list[int] = []
        freed = 0
        for slot, size in self.model:
            if freed < wanted and allowed(slot):
                expected.append(slot)
                freed += size
        assert victims(self.lru, wanted, allow=allowed) == expected


class CompiledAgainstAList(AgainstAList):
    kernels = choose_kernels("auto")


TestAgainstAList, TestCompiledAgainstAList = AgainstAList.TestCase, CompiledAgainstAList.TestCase
TestAgainstAList.settings = TestCompiledAgainstAList.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None
)
