"""Least recently used goes first.

The order is a `Recency`: one for all slots, each known by the class of its size, so that sizes are ordered among each
other and each can be walked alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from lmcache_core.contracts.policies import AccessFacts, EvictionDemand, EvictionPolicy, InsertFacts
from lmcache_core.kernels.choice import PURE, Kernels

_ANY: Final = 0
_STEPS_MIN: Final = 64
_STEPS_MAX: Final = 4096
"""Entries looked at in one go: so few that nothing else on the interpreter waits for them."""


class LeastRecentlyUsed(EvictionPolicy):
    """A batch is in prompt order and its last chunk is the oldest, because a prefix is of no use without its beginning
    but of some use without its end."""

    def __init__(self, kernels: Kernels = PURE) -> None:
        self._groups: dict[int, int] = {}
        self._sizes: list[int] = []
        self.use_kernels(kernels)

    def use_kernels(self, kernels: Kernels) -> None:
        self._recency = kernels.recency()

    def on_insert(self, slots: Sequence[int], facts: InsertFacts) -> None:
        self._recency.insert(slots, self._group_of(facts.slot_bytes))

    def on_access(self, slots: Sequence[int], facts: AccessFacts) -> None:
        self._recency.touch(slots)

    def on_remove(self, slots: Sequence[int]) -> None:
        self._recency.remove(slots)

    def victims(self, demand: EvictionDemand, may_evict: Callable[[int], bool]) -> Sequence[int]:
        chosen: dict[int, None] = {}
        for slot_bytes, wanted in demand.by_slot_bytes.items():
            if group := self._groups.get(slot_bytes):
                self._choose(chosen, wanted, group, may_evict)
        self._choose(chosen, demand.any_bytes, _ANY, may_evict)
        return tuple(chosen)

    def _choose(self, chosen: dict[int, None], wanted: int, group: int, may_evict: Callable[[int], bool]) -> None:
        """Add the oldest of this class until they hold `wanted` bytes."""
        position, steps = 0, _STEPS_MIN
        size_of, group_of = self._sizes.__getitem__, self._recency.group
        only = group or len(self._sizes) == 1  # all candidates are of one class
        while wanted > 0 and position >= 0:
            slots, position = self._recency.scan(group, position, steps)
            steps = min(2 * steps, _STEPS_MAX)
            for slot in slots:
                if slot in chosen or not may_evict(slot):
                    continue
                chosen[slot] = None
                wanted -= size_of((only or group_of(slot)) - 1)
                if wanted <= 0:
                    return

    def _group_of(self, slot_bytes: int) -> int:
        if slot_bytes not in self._groups:
            self._sizes.append(slot_bytes)
            self._groups[slot_bytes] = len(self._sizes)
        return self._groups[slot_bytes]


def open_lru(settings: None) -> EvictionPolicy:
    return LeastRecentlyUsed()
