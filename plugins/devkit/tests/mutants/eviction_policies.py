"""Eviction policies: a right one and mutants."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from lmcache_core.builtin.lru import LeastRecentlyUsed
from lmcache_core.contracts.policies import AccessFacts, EvictionDemand, InsertFacts
from lmcache_devkit.eviction_suite import EvictionPolicySuite
from plugins.devkit.tests.mutants.planted import Planted

MayEvict = Callable[[int], bool]


class OldestFirst(LeastRecentlyUsed):
    """Right in everything; each mutant below is wrong in one thing."""

    def __init__(self, settings: None) -> None:
        super().__init__()


PLANTED = Planted("eviction_policies.py", OldestFirst)


@PLANTED.killed_by("memory_does_not_grow_with_hits", "bytes more after")
class PushesEachHit(OldestFirst):
    """A heap by last use; outdated entries are dropped where victims are wanted, and nowhere else."""

    def __init__(self, settings: None) -> None:
        super().__init__(settings)
        self.heap: list[tuple[int, int]] = []
        self.used: dict[int, int] = {}
        self.sizes: dict[int, int] = {}
        self.now = 0

    def on_insert(self, slots: Sequence[int], facts: InsertFacts) -> None:
        super().on_insert(slots, facts)
        self.sizes |= dict.fromkeys(slots, facts.slot_bytes)
        self.use(slots)

    def on_access(self, slots: Sequence[int], facts: AccessFacts) -> None:
        super().on_access(slots, facts)
        self.use([slot for slot in slots if slot in self.sizes])

    def on_remove(self, slots: Sequence[int]) -> None:
        super().on_remove(slots)
        for slot in slots:
            self.used.pop(slot, None)
            self.sizes.pop(slot, None)

    def use(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self.now += 1
            self.used[slot] = self.now
            heapq.heappush(self.heap, (self.now, slot))

    def victims(self, demand: EvictionDemand, may_evict: MayEvict) -> Sequence[int]:
        while self.heap and self.used.get(self.heap[0][1]) != self.heap[0][0]:
            heapq.heappop(self.heap)
        return super().victims(demand, may_evict)


@PLANTED.killed_by("not_much_more_is_named_than_is_wanted", "where 20 are wanted|where 5 are wanted")
class NamesTenTimesAsMuch(OldestFirst):
    def victims(self, demand: EvictionDemand, may_evict: MayEvict) -> Sequence[int]:
        return super().victims(demand._replace(any_bytes=10 * demand.any_bytes), may_evict)


@PLANTED.killed_by("what_is_hit_again_and_again_is_not_the_first_to_go", "20 of the first 20 victims")
class NamesTheMostValuableFirst(OldestFirst):
    """Its list is read from the wrong end."""

    def __init__(self, settings: None) -> None:
        super().__init__(settings)
        self.sizes: dict[int, int] = {}

    def on_insert(self, slots: Sequence[int], facts: InsertFacts) -> None:
        super().on_insert(slots, facts)
        for slot in slots:
            self.sizes.pop(slot, None)
            self.sizes[slot] = facts.slot_bytes

    def on_access(self, slots: Sequence[int], facts: AccessFacts) -> None:
        super().on_access(slots, facts)
        for slot in slots:
            if slot in self.sizes:
                self.sizes[slot] = self.sizes.pop(slot)

    def on_remove(self, slots: Sequence[int]) -> None:
        super().on_remove(slots)
        for slot in slots:
            self.sizes.pop(slot, None)

    def victims(self, demand: EvictionDemand, may_evict: MayEvict) -> Sequence[int]:
        victims = list(super().victims(demand._replace(any_bytes=0), may_evict))
        wanted = demand.any_bytes
        for slot in reversed(self.sizes):
            if wanted <= 0:
                break
            if slot not in victims and may_evict(slot):
                victims.append(slot)
                wanted -= self.sizes[slot]
        return victims


@PLANTED.killed_by("a_slot_is_used_again_with_another_size_and_salt", "of slots of 4096 bytes, 4096 bytes were named")
class KeepsTheFormerSizeToo(OldestFirst):
    """Of its queues, one for each size, those of a slot's former sizes keep it."""

    def __init__(self, settings: None) -> None:
        super().__init__(settings)
        self.queues: dict[int, dict[int, None]] = {}
        self.sizes: dict[int, int] = {}

    def on_insert(self, slots: Sequence[int], facts: InsertFacts) -> None:
        super().on_insert(slots, facts)
        for slot in reversed(slots):
            self.queues.setdefault(facts.slot_bytes, {})[slot] = None
            self.sizes[slot] = facts.slot_bytes

    def victims(self, demand: EvictionDemand, may_evict: MayEvict) -> Sequence[int]:
        chosen: dict[int, None] = {}
        for size, wanted in demand.by_slot_bytes.items():
            for slot in self.queues.get(size, ()):
                if wanted > 0 and may_evict(slot):
                    chosen[slot] = None
                    wanted -= self.sizes[slot]
        others = super().victims(demand._replace(by_slot_bytes={}), lambda slot: slot not in chosen and may_evict(slot))
        return [*chosen, *others]


globals().update(PLANTED.suites(EvictionPolicySuite, __name__))
