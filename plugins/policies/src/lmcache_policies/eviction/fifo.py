"""First in, first out: whether an object is used does not matter.

The simplest there is, and what SIEVE and S3FIFO improve on.  Good where objects are used soon after they are stored and
then no more; poor for prompts that many requests share, which leave however often they are hit.
"""

from __future__ import annotations

from collections.abc import Iterator

from lmcache_core import EvictionPolicy
from lmcache_policies.eviction.algorithm import Algorithm, MayEvict
from lmcache_policies.eviction.sized_policy import SizedPolicy
from lmcache_policies.structures.slot_table import SlotTable


class Fifo(Algorithm):
    def __init__(self, table: SlotTable) -> None:
        self._lists = table.lists
        self._all = self._lists.new()

    def insert(self, slot: int, key: bytes | None) -> None:
        self._lists.append(slot, self._all)

    def hit(self, slot: int) -> None:
        pass

    def remove(self, slot: int, evicted: bool) -> None:
        self._lists.remove(slot)

    def candidates(self, may_evict: MayEvict) -> Iterator[int]:
        return filter(may_evict, self._lists.from_oldest(self._all))


def open_fifo(settings: None) -> EvictionPolicy:
    return SizedPolicy(Fifo)
