"""Store policies: a right one and mutants."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core.builtin.policies import StoreEverywhere
from lmcache_core.contracts.policies import AdapterFacts, StoredObject, StorePlan
from lmcache_devkit.store_policy_suite import StorePolicySuite
from plugins.devkit.tests.mutants.planted import Planted


class Everywhere(StoreEverywhere):
    """Right in everything; each mutant below is wrong in one thing."""

    def __init__(self, settings: None) -> None:
        self.remembered: list[bytes] = []


PLANTED = Planted("store_policies.py", Everywhere)


@PLANTED.killed_by("every_key_and_every_request_is_planned", "IndexError")
class ExpectsAnOrganisation(Everywhere):
    def plan(self, objects: Sequence[StoredObject], adapters: Sequence[AdapterFacts]) -> StorePlan:
        families = {each.space.model_name.split("/")[1] for each in objects}
        return super().plan(objects, adapters if families else ())


@PLANTED.killed_by("every_key_and_every_request_is_planned", "ZeroDivisionError")
class ExpectsALookup(Everywhere):
    def plan(self, objects: Sequence[StoredObject], adapters: Sequence[AdapterFacts]) -> StorePlan:
        shares = [each.request.hit_chunks / each.request.prompt_chunks for each in objects if each.request.request]
        return super().plan(objects, adapters if len(shares) <= len(objects) else ())


@PLANTED.killed_by("adapters_are_those_of_this_call", "were named|named")
class RemembersItsAdapters(Everywhere):
    targets: tuple[int, ...] | None = None

    def plan(self, objects: Sequence[StoredObject], adapters: Sequence[AdapterFacts]) -> StorePlan:
        if self.targets is None:
            self.targets = tuple(index for index, adapter in enumerate(adapters) if adapter.healthy)
        return StorePlan((self.targets,) * len(objects))


@PLANTED.killed_by("the_work_per_object_does_not_grow_with_the_batch", "steps per object|still at work")
class LooksForDuplicatesInTheBatch(Everywhere):
    def plan(self, objects: Sequence[StoredObject], adapters: Sequence[AdapterFacts]) -> StorePlan:
        first = [index for index, each in enumerate(objects) if objects.index(each) == index]
        plan = super().plan(objects, adapters)
        return plan if len(first) == len(objects) else StorePlan(plan.targets)


@PLANTED.killed_by("the_work_per_object_does_not_grow_with_the_objects_that_passed", "steps per object|still at work")
class SearchesAListOfThePast(Everywhere):
    """Bounded, and searched from end to end for each object."""

    def plan(self, objects: Sequence[StoredObject], adapters: Sequence[AdapterFacts]) -> StorePlan:
        for each in objects:
            if each.chunk_hash not in self.remembered:
                self.remembered.append(each.chunk_hash)
        del self.remembered[:-10_000]
        return super().plan(objects, adapters)


globals().update(PLANTED.suites(StorePolicySuite, __name__))
