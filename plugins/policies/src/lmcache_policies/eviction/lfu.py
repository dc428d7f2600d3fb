"""Least frequently used goes first; among equals, the least recently used.

Shah, Mitra, Matani: An O(1) algorithm for implementing the LFU cache eviction scheme (2010), https://arxiv.org/abs/2110.11602

One list per number of uses, so that every step is O(1); uses are counted up to 255. Counts are halved after a number of
hits per object, because otherwise what was popular once would stay for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Annotated, Final

from pydantic import Field

from lmcache_core import EvictionPolicy, PluginSettings
from lmcache_policies.eviction.algorithm import Algorithm, MayEvict
from lmcache_policies.eviction.sized_policy import SizedPolicy
from lmcache_policies.structures.slot_table import SlotTable

_USES_MAX: Final = 255


class LfuSettings(PluginSettings):
    """How long a use is worth something."""

    halving_hits_per_object: Annotated[
        int, Field(ge=0, description="Hits per cached object after which counts are halved; 0: never.")
    ] = 10


class Lfu(Algorithm):
    def __init__(self, table: SlotTable, halving_hits_per_object: int) -> None:
        self._halving_hits = halving_hits_per_object
        self._lists = table.lists
        self._by_uses = [self._lists.new() for _ in range(_USES_MAX + 1)]
        self._uses = table.columns.numbers("uses", "B")
        self._objects = 0
        self._hits = 0

    def insert(self, slot: int, key: bytes | None) -> None:
        self._uses[slot] = 1
        self._lists.append(slot, self._by_uses[1])
        self._objects += 1

    def hit(self, slot: int) -> None:
        uses = self._uses[slot] = min(self._uses[slot] + 1, _USES_MAX)
        self._lists.move(slot, self._by_uses[uses])
        self._hits += 1
        if 0 < self._halving_hits * self._objects <= self._hits:
            self._halve()

    def remove(self, slot: int, evicted: bool) -> None:
        self._lists.remove(slot)
        self._objects -= 1

    def candidates(self, may_evict: MayEvict) -> Iterator[int]:
        return filter(may_evict, chain.from_iterable(map(self._lists.from_oldest, self._by_uses)))

    def _halve(self) -> None:
        """A step per object, once in as many hits or more."""
        self._hits = 0
        for uses in range(2, _USES_MAX + 1):
            for slot in list(self._lists.from_oldest(self._by_uses[uses])):
                self._uses[slot] = uses // 2
                self._lists.move(slot, self._by_uses[uses // 2])


def open_lfu(settings: LfuSettings) -> EvictionPolicy:
    return SizedPolicy(partial(Lfu, halving_hits_per_object=settings.halving_hits_per_object))
