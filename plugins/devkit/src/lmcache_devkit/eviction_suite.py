"""The requirements of an eviction policy, as tests.  A distribution runs them with two lines:

    class TestMine(EvictionPolicySuite):
        offer = "mine"

Work is counted in lines of Python and comparisons of slot numbers, memory in bytes; no requirement looks at a clock.
"""

from __future__ import annotations

import gc
import tracemalloc
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from lmcache_core.contracts.policies import AccessFacts, EvictionDemand, EvictionPolicy, InsertFacts, RequestFacts
from lmcache_devkit.fuzzing import FUZZ
from lmcache_devkit.offer_under_test import OfferSuite, OpenableOffer
from lmcache_devkit.policy_model import LARGE, SALTS, SMALL, ModelledPolicy, line_budget, policy_machine, space_of

BATCH = 16
EVERYTHING = 10**12
NAMED_BESIDE_MAX = 8
"""Slots that may be named beside twice what is wanted."""
PROMPT, HITS = 20, 30
STEPS_MAX = 10_000.0
HIT_SLOTS, HIT_ROUNDS, HIT_BYTES_MAX = 100, 500, 131_072


class EvictionPolicySuite(OfferSuite):
    """Set `offer`."""

    kind = "eviction_policy"
    bytes_per_slot_max: ClassVar[int] = 400
    """Memory in steady state, with whatever it remembers of objects that are gone."""

    @pytest.fixture
    def modelled(self, under_test: OpenableOffer) -> ModelledPolicy:
        return ModelledPolicy(under_test.open())

    # What may be named.

    def test_it_is_an_eviction_policy_and_a_new_one_names_nothing(self, under_test: OpenableOffer) -> None:
        policy = under_test.open()
        assert isinstance(policy, EvictionPolicy)
        assert list(policy.victims(EvictionDemand(EVERYTHING, {SMALL: EVERYTHING}), lambda slot: True)) == []

    def test_empty_batches_are_legal(self, modelled: ModelledPolicy) -> None:
        modelled.insert([])
        modelled.access([])
        modelled.remove([])
        modelled.insert([1])
        modelled.insert([])
        modelled.victims(1)

    def test_asked_for_nothing_it_names_nothing(self, modelled: ModelledPolicy) -> None:
        modelled.insert(range(10))
        assert modelled.victims(0) == []
        assert modelled.victims(0, {SMALL: 0, LARGE: 0}) == []

    def test_a_held_slot_is_never_named(self, modelled: ModelledPolicy) -> None:
        modelled.insert(range(20))
        modelled.held.update(range(0, 20, 2))
        modelled.victims(EVERYTHING)
        modelled.victims(SMALL)

    def test_an_empty_slot_is_never_named(self, modelled: ModelledPolicy) -> None:
        modelled.insert(range(10))
        modelled.access([3, 4])
        modelled.remove([3, 5, 9])
        modelled.victims(EVERYTHING)

    def test_no_slot_is_named_twice(self, modelled: ModelledPolicy) -> None:
        modelled.insert(range(8))
        modelled.insert(range(8, 12), LARGE)
        modelled.access([0, 1, 8])
        modelled.victims(EVERYTHING, {SMALL: 3 * SMALL, LARGE: LARGE})

    # How much is named.

    def test_what_may_go_is_named_when_it_is_wanted(self, modelled: ModelledPolicy) -> None:
        modelled.insert(range(10))
        modelled.insert(range(10, 14), LARGE)
        modelled.access([1, 2, 11])
        for wanted in (1, SMALL, SMALL + 1, 5 * LARGE, EVERYTHING):
            modelled.victims(wanted)

    def test_held_slots_do_not_keep_it_from_the_others(self, modelled: ModelledPolicy) -> None:
        modelled.insert(range(40))
        modelled.access(range(40))
        for free in (0, 20, 39):
            modelled.held.clear()
            modelled.held.update(set(range(40)) - {free})
            modelled.victims(SMALL)

    def test_a_demand_for_a_size_is_met_from_slots_of_that_size(self, modelled: ModelledPolicy) -> None:
        modelled.insert(range(30))
        modelled.insert(range(30, 34), LARGE)
        modelled.insert(range(34, 64))
        victims = modelled.victims(0, {LARGE: 3 * LARGE - 1})
        assert all(modelled.live[slot].slot_bytes == LARGE for slot in victims)
        modelled.victims(SMALL, {LARGE: LARGE, SMALL: 2 * SMALL, 999: 5})

    def test_a_demand_for_a_salt_is_met_from_objects_of_that_salt(self, modelled: ModelledPolicy) -> None:
        if not modelled.policy.isolates_salts:
            pytest.skip("the policy does not promise to serve demands for a salt")
        modelled.insert(range(20), salt=SALTS[0])
        modelled.insert(range(20, 24), salt=SALTS[1])
        modelled.insert(range(24, 26), LARGE, SALTS[1])
        victims = modelled.victims(0, None, {SALTS[1]: 4 * SMALL})
        assert victims
        assert all(modelled.live[slot].salt == SALTS[1] for slot in victims)
        modelled.victims(SMALL, None, {SALTS[0]: 2 * SMALL, SALTS[1]: EVERYTHING, "absent": 7})

    def test_not_much_more_is_named_than_is_wanted(self, modelled: ModelledPolicy) -> None:
        """What leaves without need is computed again."""
        modelled.insert(range(400))
        modelled.access(range(0, 400, 7))
        for wanted in (1, 5, 20):
            named = len(modelled.victims(wanted * SMALL))
            assert named <= 2 * wanted + NAMED_BESIDE_MAX, f"{named} slots were named where {wanted} are wanted"

    def test_what_is_hit_again_and_again_is_not_the_first_to_go(self, modelled: ModelledPolicy) -> None:
        """Ten prompts alike; the newest is hit by many requests, the others by none.  By chance, one in ten would be of it."""
        if not (modelled.policy.evicts and modelled.policy.keeps_hits):
            pytest.skip("the policy evicts nothing, or says that it does not keep what is hit (keeps_hits)")
        prompts = [range(first, first + PROMPT) for first in range(0, 10 * PROMPT, PROMPT)]
        for number, prompt in enumerate(prompts, 1):
            modelled.insert(prompt, request=number)
        for request in range(100, 100 + HITS):
            modelled.access(prompts[-1], request)
        victims = modelled.victims(PROMPT * SMALL)[:PROMPT]
        hot = [slot for slot in victims if slot in prompts[-1]]
        assert len(hot) <= PROMPT // 2, (
            f"{len(hot)} of the first {len(victims)} victims are of the prompt that {HITS} requests have hit, and "
            f"{9 * PROMPT} slots were never hit"
        )

    # What it remembers.

    def test_victims_stay_known_until_they_are_removed(self, modelled: ModelledPolicy) -> None:
        modelled.insert(range(12))
        for _ in range(3):
            modelled.victims(3 * SMALL)
        modelled.access([0, 6])
        modelled.victims(EVERYTHING)
        modelled.evict(3 * SMALL)
        modelled.victims(EVERYTHING)

    def test_unknown_slots_are_ignored(self, modelled: ModelledPolicy) -> None:
        modelled.access([0, 7, 100_000])
        modelled.remove([0, 7, 100_000])
        modelled.insert([1, 2])
        modelled.access([0, 7, 1, 100_000])
        modelled.remove([0, 7, 100_000, 1, 1])
        modelled.victims(EVERYTHING)

    def test_a_slot_is_used_again_with_another_size_and_salt(self, modelled: ModelledPolicy) -> None:
        modelled.insert([0, 1, 2])
        modelled.access([1])
        modelled.remove([1])
        modelled.insert([1], LARGE, SALTS[1])
        modelled.victims(0, {LARGE: 1}, {SALTS[1]: 1})
        modelled.victims(0, {SMALL: 2 * SMALL})
        modelled.victims(EVERYTHING, {SMALL: EVERYTHING})

    def test_a_known_slot_may_be_inserted_again(self, modelled: ModelledPolicy) -> None:
        modelled.insert([0, 1, 2])
        modelled.access([1, 2])
        modelled.insert([2, 1, 3], LARGE, SALTS[1])
        modelled.victims(0, {SMALL: EVERYTHING})
        modelled.victims(EVERYTHING, {LARGE: LARGE})
        modelled.remove([1])
        modelled.victims(EVERYTHING)

    def test_facts_may_be_missing(self, under_test: OpenableOffer) -> None:
        policy = under_test.open()
        for _ in range(2):
            policy.on_insert([4, 5], InsertFacts(SMALL, space_of(""), 0))
            policy.on_access([4], AccessFacts())
            policy.victims(EvictionDemand(SMALL, {}), lambda slot: True)
            policy.on_remove([4, 5])

    def test_no_history_breaks_a_requirement(self, under_test: OpenableOffer) -> None:
        machine = policy_machine(under_test.open)
        run_state_machine_as_test(machine, settings=settings(FUZZ, stateful_step_count=25))

    # What it costs.

    def test_it_comes_to_an_end_when_everything_is_held(self, modelled: ModelledPolicy) -> None:
        modelled.insert(range(500))
        modelled.insert(range(500, 700), LARGE)
        modelled.access(range(0, 700, 3))
        modelled.held.update(range(700))
        for _ in range(3):
            assert modelled.victims(EVERYTHING, {SMALL: EVERYTHING, LARGE: EVERYTHING}) == []

    def test_the_work_per_slot_does_not_grow_with_the_number_of_slots(self, under_test: OpenableOffer) -> None:
        few = _steps_per_slot(under_test.open(), 2048, STEPS_MAX)
        many = _steps_per_slot(under_test.open(), 32_768, 2.5 * few)
        assert many <= 2.5 * few, f"{few:.0f} steps per slot among 2048 slots, at least {many:.0f} among 32768"

    def test_memory_does_not_grow_with_hits(self, under_test: OpenableOffer) -> None:
        """No victims are wanted meanwhile: what is put off until then must be bounded."""
        modelled = ModelledPolicy(under_test.open())
        modelled.insert(range(HIT_SLOTS))
        facts = [AccessFacts(0, RequestFacts(float(request), request, HIT_SLOTS, HIT_SLOTS)) for request in range(64)]
        tracemalloc.start()
        try:
            grown = []
            for _ in range(2):
                begin = _traced_bytes()
                for number in range(HIT_ROUNDS):
                    modelled.policy.on_access(list(range(HIT_SLOTS)), facts[number % 64])
                grown.append(_traced_bytes() - begin)
        finally:
            tracemalloc.stop()
        assert grown[1] <= HIT_BYTES_MAX, (
            f"{grown[1]} bytes more after {HIT_ROUNDS} more hits of {HIT_SLOTS} slots each"
        )

    def test_memory_is_bounded_by_the_slots_and_not_by_the_objects_that_passed(self, under_test: OpenableOffer) -> None:
        slots = 5000
        tracemalloc.start()
        try:
            begin = _traced_bytes()
            modelled = ModelledPolicy(under_test.open())
            churn = _Churn(modelled.policy, slots)
            churn.run(50_000)
            early = _traced_bytes() - begin
            churn.run(50_000)
            late = _traced_bytes() - begin
        finally:
            tracemalloc.stop()
        assert late <= 1.1 * early + 65_536, f"{early} bytes after 50000 objects and {late} after 100000"
        assert late / slots <= self.bytes_per_slot_max, f"{late / slots:.0f} bytes per slot"


class _Churn:
    """Objects that come and go in `slots` slots; the policy is asked what goes, and where it names nothing some go
    all the same.
    Some are hit, some come back, and tenants come and go too.  Bookkeeping that is not the policy's takes no memory
    that grows."""

    def __init__(self, policy: EvictionPolicy, slots: int) -> None:
        self._policy = policy
        self._slots = slots
        self._free = list(range(slots))
        self._inserted = 0

    def run(self, objects: int) -> None:
        end = self._inserted + objects
        while self._inserted < end:
            while len(self._free) < BATCH:
                self._free_some()
            batch = [self._free.pop() for _ in range(BATCH)]
            come_back = self._inserted - 2 * self._slots if self._inserted % 5 == 0 else self._inserted
            keys = tuple(b"object %29d" % number for number in range(come_back, come_back + BATCH))
            space = space_of(f"tenant {self._inserted // 2000}")
            self._policy.on_insert(batch, InsertFacts(SMALL, space, 0, keys))
            if self._inserted % 3 == 0:
                self._policy.on_access(batch[:4], AccessFacts())
            self._inserted += BATCH

    def _free_some(self) -> None:
        free = set(self._free)
        demand = EvictionDemand(4 * BATCH * SMALL, {})
        victims = [slot for slot in self._policy.victims(demand, lambda slot: slot not in free) if slot not in free]
        if not victims:
            victims = [slot for slot in range(self._slots) if slot not in free][: 4 * BATCH]
        self._policy.on_remove(victims)
        self._free += victims


def _traced_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


class _Slot(int):
    """A slot number that counts how often it is compared: searching and sorting in C code is work that no line shows."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        _Slot.compared += 1
        return int.__eq__(self, other) is True

    def __lt__(self, other: int) -> bool:
        _Slot.compared += 1
        return int.__lt__(self, other)

    __hash__ = int.__hash__


def _steps_per_slot(policy: EvictionPolicy, slots: int, enough: float) -> float:
    """Fill it, and then hit, remove, insert and choose an eighth of the slots each.  It ends early where there are more
    than `enough`, so that a slow policy is named as soon as a fast one passes."""
    everything = [_Slot(slot) for slot in range(slots)]
    for begin in range(0, slots, BATCH):
        policy.on_insert(everything[begin : begin + BATCH], _facts(begin))
    sample = [everything[begin : begin + BATCH] for begin in range(0, slots, 8 * BATCH)]
    lines, touched = 10_000 * slots, len(sample) * BATCH
    _Slot.compared = 0
    with line_budget(lines) as left:

        def steps_per_slot() -> float:
            return (lines - left[0] + _Slot.compared) / touched

        for batch in sample:
            policy.on_access(batch, AccessFacts())
            if steps_per_slot() > enough:
                break
        for batch in sample:
            if steps_per_slot() > enough:
                break
            policy.on_remove(batch)
            policy.on_insert(batch, _facts(slots + batch[0]))
        for batch in sample:
            if steps_per_slot() > enough:
                break
            victims = policy.victims(EvictionDemand(BATCH * SMALL, {}), lambda slot: True)
            policy.on_remove(victims)
            policy.on_insert(victims or batch, _facts(2 * slots + batch[0]))
    return steps_per_slot()


def _facts(first: int) -> InsertFacts:
    return InsertFacts(SMALL, space_of(""), 0, tuple(b"object %29d" % n for n in range(first, first + BATCH)))
