"""SIEVE: a first-in-first-out queue whose objects are spared once for having been used.

Zhang, Yang, Yue, Vigfusson, Rashmi: SIEVE is simpler than LRU (NSDI 2024),
https://www.usenix.org/conference/nsdi24/presentation/zhang-yazhuo

A hand walks from the oldest to the newest: it clears the mark of a used object and evicts an unused one.  What is
spared stays where it is, so new objects are sieved quickly while old ones that are used survive.  A hit only sets a
mark.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lmcache_core import EvictionPolicy
from lmcache_policies.eviction.algorithm import Algorithm, MayEvict
from lmcache_policies.eviction.sized_policy import SizedPolicy
from lmcache_policies.structures.slot_lists import END
from lmcache_policies.structures.slot_table import SlotTable

_USED: Final = 1


class Sieve(Algorithm):
    def __init__(self, table: SlotTable) -> None:
        self._lists = table.lists
        self._all = self._lists.new()
        self._used = table.columns.numbers("used", "B")
        self._hand = END
        """Where the next walk begins; END is before the oldest."""

    def insert(self, slot: int, key: bytes | None) -> None:
        self._lists.append(slot, self._all)
        self._used[slot] = 0

    def hit(self, slot: int) -> None:
        self._used[slot] = _USED

    def remove(self, slot: int, evicted: bool) -> None:
        if slot == self._hand:
            self._hand = self._lists.newer[slot]
        self._lists.remove(slot)

    def candidates(self, may_evict: MayEvict) -> Iterator[int]:
        spared = []
        for slot in self._round():
            if not may_evict(slot):
                continue
            # The hand rests on what it names, and goes on when that is removed.
            self._hand = slot
            if self._used[slot]:
                self._used[slot] = 0
                spared.append(slot)
            else:
                yield slot
        for slot in spared:  # the second round
            if may_evict(slot):
                self._hand = slot
                yield slot

    def _round(self) -> Iterator[int]:
        """From the hand to the newest, and from the oldest to the hand."""
        lists, start = self._lists, self._hand
        slot = lists.oldest(self._all) if start == END else start
        for _ in range(lists.length(self._all)):
            yield slot
            slot = lists.newer[slot]
            if slot == END:
                slot = lists.oldest(self._all)


def open_sieve(settings: None) -> EvictionPolicy:
    return SizedPolicy(Sieve)
