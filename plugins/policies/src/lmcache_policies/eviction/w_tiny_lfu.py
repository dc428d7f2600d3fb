"""W-TinyLFU: what is new must have been used more often than what it would push out.

Einziger, Friedman, Manes: TinyLFU, a highly efficient cache admission policy (ACM Transactions on Storage 13(4), 2017),
https://arxiv.org/abs/1512.00727

New objects pass through a small LRU window.  What leaves the window meets the oldest object of the main cache
(segmented LRU): a sketch of recent uses, which knows evicted objects too, says which of the two is the victim; a tie is
for the one that was there.  Here room is made later than objects come, so they wait in between as arrivals until
victims are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain, islice
from typing import Annotated

from pydantic import Field

from lmcache_core import EvictionPolicy, PluginSettings
from lmcache_policies.eviction.algorithm import Algorithm, MayEvict
from lmcache_policies.eviction.sized_policy import SizedPolicy
from lmcache_policies.structures.frequency_sketch import FrequencySketch
from lmcache_policies.structures.slot_lists import END
from lmcache_policies.structures.slot_table import SlotTable


class WTinyLfuSettings(PluginSettings):
    """How the cache is divided."""

    window_share: Annotated[
        float, Field(gt=0, lt=1, description="Part of the cached objects that are not compared yet, 0 to 1.")
    ] = 0.01
    protected_share: Annotated[
        float, Field(gt=0, lt=1, description="Part of the main cache that may be protected, 0 to 1.")
    ] = 0.8


class WTinyLfu(Algorithm):
    def __init__(self, table: SlotTable, window_share: float, protected_share: float) -> None:
        self._window_share = window_share
        self._protected_share = protected_share
        self._lists = table.lists
        self._window, self._arrivals, self._probation, self._protected = (self._lists.new() for _ in range(4))
        self._keys = table.columns.objects("keys")
        self._uses = FrequencySketch()
        self._objects = 0

    def insert(self, slot: int, key: bytes | None) -> None:
        lists = self._lists
        lists.append(slot, self._window)
        self._keys[slot] = key
        self._objects += 1
        self._uses.make_room(self._objects)
        if key is not None:
            self._uses.add(key)
        while lists.length(self._window) > max(1, self._window_share * self._objects):
            lists.move(lists.oldest(self._window), self._arrivals)

    def hit(self, slot: int) -> None:
        lists = self._lists
        if (key := self._keys[slot]) is not None:
            self._uses.add(key)
        if lists.list_of(slot) == self._window:
            lists.move(slot, self._window)
            return
        lists.move(slot, self._protected)
        protected_max = self._protected_share * (self._objects - lists.length(self._window))
        while lists.length(self._protected) > protected_max:
            lists.move(lists.oldest(self._protected), self._probation)

    def remove(self, slot: int, evicted: bool) -> None:
        self._lists.remove(slot)
        self._keys[slot] = None
        self._objects -= 1

    def candidates(self, may_evict: MayEvict) -> Iterator[int]:
        lists = self._lists
        if not lists.length(self._probation) and not lists.length(self._protected):
            self._settle()
        residents = chain(
            islice(lists.from_oldest(self._probation), lists.length(self._probation)),
            lists.from_oldest(self._protected),
        )
        main = filter(may_evict, residents)
        admitted = []
        resident = next(main, None)
        slot = lists.oldest(self._arrivals)
        while slot != END:
            arrival, slot = slot, lists.newer[slot]
            if not may_evict(arrival):
                continue
            if resident is None or not self._is_used_more(arrival, resident):
                yield arrival
            else:
                lists.move(arrival, self._probation)
                admitted.append(arrival)
                yield resident
                resident = next(main, None)
        if resident is not None:
            yield resident
        yield from main
        yield from filter(may_evict, admitted)
        yield from filter(may_evict, lists.from_oldest(self._window))

    def _settle(self) -> None:
        """The cache has filled up for the first time: there is nothing yet that arrivals could be compared with, so all
        but the last become it."""
        lists = self._lists
        while lists.length(self._arrivals) > 1:
            lists.move(lists.oldest(self._arrivals), self._probation)

    def _is_used_more(self, arrival: int, resident: int) -> bool:
        return self._uses.estimate(self._keys[arrival]) > self._uses.estimate(self._keys[resident])


def open_w_tiny_lfu(settings: WTinyLfuSettings) -> EvictionPolicy:
    algorithm = partial(WTinyLfu, window_share=settings.window_share, protected_share=settings.protected_share)
    return SizedPolicy(algorithm)
