"""Segmented LRU: what was used again is protected from what was not.

Karedla, Love, Wherry: Caching strategies to improve disk system performance (IEEE Computer 27(3), 1994),
https://doi.org/10.1109/2.268884

New objects are on probation, the first hit protects them.  The protected segment has a share of the cache; what is
pushed out of it is on probation again, as the newest.  Victims come from probation, so one long prompt cannot flush
what is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Annotated

from pydantic import Field

from lmcache_core import EvictionPolicy, PluginSettings
from lmcache_policies.eviction.algorithm import Algorithm, MayEvict
from lmcache_policies.eviction.sized_policy import SizedPolicy
from lmcache_policies.structures.slot_table import SlotTable


class SlruSettings(PluginSettings):
    """How the cache is divided."""

    protected_share: Annotated[
        float, Field(gt=0, lt=1, description="Part of the cached objects that may be protected, 0 to 1.")
    ] = 0.8


class Slru(Algorithm):
    def __init__(self, table: SlotTable, protected_share: float) -> None:
        self._share = protected_share
        self._lists = table.lists
        self._probation = self._lists.new()
        self._protected = self._lists.new()

    def insert(self, slot: int, key: bytes | None) -> None:
        self._lists.append(slot, self._probation)

    def hit(self, slot: int) -> None:
        lists = self._lists
        lists.move(slot, self._protected)
        protected = lists.length(self._protected)
        protected_max = self._share * (protected + lists.length(self._probation))
        while protected > protected_max:
            lists.move(lists.oldest(self._protected), self._probation)
            protected -= 1

    def remove(self, slot: int, evicted: bool) -> None:
        self._lists.remove(slot)

    def candidates(self, may_evict: MayEvict) -> Iterator[int]:
        lists = self._lists
        return filter(may_evict, chain(lists.from_oldest(self._probation), lists.from_oldest(self._protected)))


def open_slru(settings: SlruSettings) -> EvictionPolicy:
    return SizedPolicy(partial(Slru, protected_share=settings.protected_share))
