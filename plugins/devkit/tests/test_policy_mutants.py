"""The requirements can fail: each of these broken policies is found by the requirement that is there for it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from lmcache_core.builtin.lru import LeastRecentlyUsed
from lmcache_core.builtin.policies import LoadFromFirst, StoreEverywhere
from lmcache_core.contracts.offer import Offer
from lmcache_core.contracts.policies import (
    AccessFacts,
    AdapterFacts,
    EvictionDemand,
    InsertFacts,
    PrefetchPlan,
    StoredObject,
    StorePlan,
)
from lmcache_core.model.results import Bitmap
from lmcache_devkit.eviction_suite import EvictionPolicySuite
from lmcache_devkit.offer_under_test import OpenableOffer
from lmcache_devkit.policy_model import SMALL, ModelledPolicy, policy_machine
from lmcache_devkit.prefetch_policy_suite import PrefetchPolicySuite
from lmcache_devkit.store_policy_suite import StorePolicySuite

MayEvict = Callable[[int], bool]


class NamesHeldSlots(LeastRecentlyUsed):
    def victims(self, demand: EvictionDemand, may_evict: MayEvict) -> Sequence[int]:
        return super().victims(demand, lambda slot: True)


class NamesRemovedSlots(LeastRecentlyUsed):
    def on_remove(self, slots: Sequence[int]) -> None:
        pass

    def victims(self, demand: EvictionDemand, may_evict: MayEvict) -> Sequence[int]:
        return super().victims(demand, lambda slot: True)


class NeverEnds(LeastRecentlyUsed):
    def victims(self, demand: EvictionDemand, may_evict: MayEvict) -> Sequence[int]:
        victims: Sequence[int] = ()
        while demand.any_bytes and not victims:
            victims = super().victims(demand, may_evict)
        return victims


class NeverEndsAndNeverAsks(LeastRecentlyUsed):
    def victims(self, demand: EvictionDemand, may_evict: MayEvict) -> Sequence[int]:
        victims = super().victims(demand, may_evict)
        while demand.any_bytes and not victims:
            pass
        return victims


class NamesTwice(LeastRecentlyUsed):
    def victims(self, demand: EvictionDemand, may_evict: MayEvict) -> Sequence[int]:
        by_size = super().victims(EvictionDemand(0, demand.by_slot_bytes), may_evict)
        return [*by_size, *super().victims(EvictionDemand(demand.any_bytes, {}), may_evict)]


class ForgetsWhatItNamed(LeastRecentlyUsed):
    def victims(self, demand: EvictionDemand, may_evict: MayEvict) -> Sequence[int]:
        victims = super().victims(demand, may_evict)
        self.on_remove(victims)
        return victims


class RemembersEveryKey(LeastRecentlyUsed):
    def __init__(self) -> None:
        super().__init__()
        self.ghosts: set[bytes] = set()

    def on_insert(self, slots: Sequence[int], facts: InsertFacts) -> None:
        super().on_insert(slots, facts)
        self.ghosts.update(facts.keys)


class KeepsTooMuchPerSlot(LeastRecentlyUsed):
    def __init__(self) -> None:
        super().__init__()
        self.history: dict[int, list[bytes]] = {}

    def on_insert(self, slots: Sequence[int], facts: InsertFacts) -> None:
        super().on_insert(slots, facts)
        for slot in slots:
            self.history[slot] = [bytes(8 * number) for number in range(16)]


class SearchesInPython(LeastRecentlyUsed):
    def on_access(self, slots: Sequence[int], facts: AccessFacts) -> None:
        super().on_access(slots, facts)
        number = 0
        while self._recency.group(number):
            number += 1


class SearchesInC(LeastRecentlyUsed):
    def __init__(self) -> None:
        super().__init__()
        self.order: list[int] = []

    def on_insert(self, slots: Sequence[int], facts: InsertFacts) -> None:
        super().on_insert(slots, facts)
        self.order.extend(slots)

    def on_access(self, slots: Sequence[int], facts: AccessFacts) -> None:
        super().on_access(slots, facts)
        if slots:
            self.order.index(slots[0])


class IgnoresSizes(LeastRecentlyUsed):
    def victims(self, demand: EvictionDemand, may_evict: MayEvict) -> Sequence[int]:
        return super().victims(EvictionDemand(demand.any_bytes + sum(demand.by_slot_bytes.values()), {}), may_evict)


class GivesUpAtAHeldSlot(LeastRecentlyUsed):
    def victims(self, demand: EvictionDemand, may_evict: MayEvict) -> Sequence[int]:
        victims = []
        for slot in super().victims(demand, lambda slot: True):
            if not may_evict(slot):
                break
            victims.append(slot)
        return victims


class NamesOneAtATime(LeastRecentlyUsed):
    def victims(self, demand: EvictionDemand, may_evict: MayEvict) -> Sequence[int]:
        return super().victims(demand, may_evict)[:1]


class FailsOnUnknownSlots(LeastRecentlyUsed):
    def on_access(self, slots: Sequence[int], facts: AccessFacts) -> None:
        if not all(map(self._recency.group, slots)):
            raise KeyError("a slot that was never inserted")
        super().on_access(slots, facts)


class KeepsTheFirstSize(LeastRecentlyUsed):
    def __init__(self) -> None:
        super().__init__()
        self.size_of: dict[int, int] = {}

    def on_insert(self, slots: Sequence[int], facts: InsertFacts) -> None:
        for slot in reversed(slots):
            size = self.size_of.setdefault(slot, facts.slot_bytes)
            super().on_insert([slot], facts._replace(slot_bytes=size))


class NamesThemAllForNothing(LeastRecentlyUsed):
    def victims(self, demand: EvictionDemand, may_evict: MayEvict) -> Sequence[int]:
        return super().victims(EvictionDemand(10**12, {}), may_evict)


KILLED_BY = [
    (NamesHeldSlots, "a_held_slot_is_never_named"),
    (NamesRemovedSlots, "an_empty_slot_is_never_named"),
    (NeverEnds, "it_comes_to_an_end_when_everything_is_held"),
    (NeverEndsAndNeverAsks, "it_comes_to_an_end_when_everything_is_held"),
    (NamesTwice, "no_slot_is_named_twice"),
    (ForgetsWhatItNamed, "victims_stay_known_until_they_are_removed"),
    (RemembersEveryKey, "memory_is_bounded_by_the_slots_and_not_by_the_objects_that_passed"),
    (KeepsTooMuchPerSlot, "memory_is_bounded_by_the_slots_and_not_by_the_objects_that_passed"),
    (SearchesInPython, "the_work_per_slot_does_not_grow_with_the_number_of_slots"),
    (SearchesInC, "the_work_per_slot_does_not_grow_with_the_number_of_slots"),
    (IgnoresSizes, "a_demand_for_a_size_is_met_from_slots_of_that_size"),
    (GivesUpAtAHeldSlot, "held_slots_do_not_keep_it_from_the_others"),
    (NamesOneAtATime, "what_may_go_is_named_when_it_is_wanted"),
    (FailsOnUnknownSlots, "unknown_slots_are_ignored"),
    (KeepsTheFirstSize, "a_slot_is_used_again_with_another_size_and_salt"),
    (NamesThemAllForNothing, "asked_for_nothing_it_names_nothing"),
]
LONG_REQUIREMENTS = (
    "memory_is_bounded_by_the_slots_and_not_by_the_objects_that_passed",
    "the_work_per_slot_does_not_grow_with_the_number_of_slots",
)
FOUND_BY_CHANCE = [NamesHeldSlots, NamesRemovedSlots, NamesTwice, ForgetsWhatItNamed, IgnoresSizes, KeepsTheFirstSize]


@pytest.mark.parametrize(
    ("mutant", "requirement"),
    [pytest.param(*each, marks=pytest.mark.slow) if each[1] in LONG_REQUIREMENTS else each for each in KILLED_BY],
)
def test_each_mutant_is_killed_by_its_requirement(mutant: type[LeastRecentlyUsed], requirement: str) -> None:
    with pytest.raises((AssertionError, KeyError)):
        hold(EvictionPolicySuite(), requirement, mutant)


@pytest.mark.parametrize("requirement", sorted({requirement for _, requirement in KILLED_BY}))
@pytest.mark.slow
def test_the_policy_that_they_were_made_of_keeps_these_requirements(requirement: str) -> None:
    hold(EvictionPolicySuite(), requirement, LeastRecentlyUsed)


@pytest.mark.parametrize("mutant", FOUND_BY_CHANCE)
def test_the_machine_finds_them_without_a_requirement_of_their_own(mutant: type[LeastRecentlyUsed]) -> None:
    """Any failure will do, so none is made smaller."""
    once = settings(max_examples=200, phases=[Phase.generate], report_multiple_bugs=False, deadline=None)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(policy_machine(mutant), settings=once)


def test_a_promise_to_serve_salts_is_held_against_the_policy() -> None:
    class Promises(LeastRecentlyUsed):
        isolates_salts = True

    modelled = ModelledPolicy(Promises())
    modelled.insert([1, 2], salt="tenant")
    with pytest.raises(AssertionError, match="of salt 'tenant'"):
        modelled.victims(0, None, {"tenant": SMALL})
    with pytest.raises(AssertionError):
        hold(EvictionPolicySuite(), "a_demand_for_a_salt_is_met_from_objects_of_that_salt", Promises)


def test_a_salt_pays_for_itself_even_where_it_has_not_enough() -> None:
    class LetsOthersPayTheRest(LeastRecentlyUsed):
        isolates_salts = True

        def victims(self, demand: EvictionDemand, may_evict: Callable[[int], bool]) -> Sequence[int]:
            wanted = demand.any_bytes + sum(demand.by_salt.values())
            return super().victims(EvictionDemand(wanted, demand.by_slot_bytes), may_evict)

    modelled = ModelledPolicy(LetsOthersPayTheRest())
    modelled.insert([1], salt="tenant")
    modelled.insert([2])
    assert modelled.victims(0, None, {"tenant": 1}) == [1]
    with pytest.raises(AssertionError, match=r"named for the salts \['tenant'\], and of another one: \[2\]"):
        modelled.victims(0, None, {"tenant": 2 * SMALL})


class NamesSickAdapters(StoreEverywhere):
    def plan(self, objects: Sequence[StoredObject], adapters: Sequence[AdapterFacts]) -> StorePlan:
        return StorePlan((tuple(range(len(adapters))),) * len(objects))


class NamesAdaptersThatAreNotThere(StoreEverywhere):
    def plan(self, objects: Sequence[StoredObject], adapters: Sequence[AdapterFacts]) -> StorePlan:
        return StorePlan(((0,),) * len(objects))


class PlansForOne(StoreEverywhere):
    def plan(self, objects: Sequence[StoredObject], adapters: Sequence[AdapterFacts]) -> StorePlan:
        return StorePlan(super().plan(objects, adapters).targets[:1])


class LosesObjects(StoreEverywhere):
    def plan(self, objects: Sequence[StoredObject], adapters: Sequence[AdapterFacts]) -> StorePlan:
        return StorePlan(super().plan(objects, adapters).targets, drop_from_l1=True)


class Collects(StoreEverywhere):
    def __init__(self) -> None:
        self.seen: list[StoredObject] = []

    def plan(self, objects: Sequence[StoredObject], adapters: Sequence[AdapterFacts]) -> StorePlan:
        self.seen.extend(objects)
        return super().plan(objects, adapters)


class ChangesItsMind(StoreEverywhere):
    asked = 0

    def plan(self, objects: Sequence[StoredObject], adapters: Sequence[AdapterFacts]) -> StorePlan:
        self.asked += 1
        return StorePlan(super().plan(objects, adapters).targets, drop_from_l1=bool(adapters) and self.asked % 2 == 0)


@pytest.mark.parametrize(
    ("mutant", "requirement"),
    [
        (NamesSickAdapters, "every_object_has_its_targets_and_they_are_healthy_adapters"),
        (NamesAdaptersThatAreNotThere, "every_object_has_its_targets_and_they_are_healthy_adapters"),
        (PlansForOne, "every_object_has_its_targets_and_they_are_healthy_adapters"),
        (LosesObjects, "objects_that_no_adapter_takes_stay_in_l1"),
        (ChangesItsMind, "a_batch_of_nothing_is_planned_the_same_each_time"),
        (Collects, "memory_does_not_grow_with_the_objects_that_passed"),
    ],
)
def test_each_store_mutant_is_killed_by_its_requirement(mutant: type[StoreEverywhere], requirement: str) -> None:
    with pytest.raises(AssertionError):
        hold(StorePolicySuite(), requirement, mutant)


class LoadsFromSickAdapters(LoadFromFirst):
    def plan(self, found: Sequence[Bitmap], adapters: Sequence[AdapterFacts]) -> PrefetchPlan:
        return super().plan(found, [adapter._replace(healthy=True) for adapter in adapters])


class LoadsWhatIsNotThere(LoadFromFirst):
    def plan(self, found: Sequence[Bitmap], adapters: Sequence[AdapterFacts]) -> PrefetchPlan:
        sources = super().plan(found, adapters).sources
        return PrefetchPlan(tuple(0 if source is None and adapters[0].healthy else source for source in sources))


class StopsEarly(LoadFromFirst):
    def plan(self, found: Sequence[Bitmap], adapters: Sequence[AdapterFacts]) -> PrefetchPlan:
        return PrefetchPlan(super().plan(found, adapters).sources[:-1])


class LoadsNothing(LoadFromFirst):
    def plan(self, found: Sequence[Bitmap], adapters: Sequence[AdapterFacts]) -> PrefetchPlan:
        return PrefetchPlan((None,) * len(super().plan(found, adapters).sources))


class TakesNotes(LoadFromFirst):
    def plan(self, found: Sequence[Bitmap], adapters: Sequence[AdapterFacts]) -> PrefetchPlan:
        plan = super().plan(found, adapters)
        for bits in found:
            bits.add(0)
        return plan


@pytest.mark.parametrize(
    ("mutant", "requirement"),
    [
        (LoadsFromSickAdapters, "sources_are_healthy_adapters_that_have_the_key"),
        (LoadsWhatIsNotThere, "sources_are_healthy_adapters_that_have_the_key"),
        (StopsEarly, "sources_are_healthy_adapters_that_have_the_key"),
        (LoadsNothing, "something_is_loaded_where_a_healthy_adapter_has_everything"),
        (TakesNotes, "what_was_found_is_not_changed"),
    ],
)
def test_each_prefetch_mutant_is_killed_by_its_requirement(mutant: type[LoadFromFirst], requirement: str) -> None:
    filled = 1.0 if requirement.startswith("something") else 0.3
    with pytest.raises(AssertionError):
        hold(PrefetchPolicySuite(), requirement, mutant, filled=filled)


class Opened(OpenableOffer):
    """An offer whose `open` is a class of this file."""

    def open(self, *context: Any) -> Any:
        return self.settings["opened"]()


def hold(suite: Any, requirement: str, opened: Callable[[], Any], **parameters: Any) -> None:
    """Run one requirement of a suite, with the fixtures it asks for."""
    under_test = Opened(Offer("mutant", "", "nowhere:open"), {"opened": opened})
    test = getattr(suite, f"test_{requirement}")
    fixtures: dict[str, Callable[[], Any]] = {
        "under_test": lambda: under_test,
        "modelled": lambda: ModelledPolicy(opened()),
        "policy": opened,
    }
    names = inspect.signature(test).parameters
    test(**{name: fixtures[name]() if name in fixtures else parameters[name] for name in names})
