"""Most recently used goes first.

Chou, DeWitt: An evaluation of buffer management strategies for relational database systems (VLDB 1985),
https://www.vldb.org/conf/1985/P127.PDF

For scans that repeat in a loop longer than the cache, where what was just used is what comes back last.  For anything
else the opposite of what is wanted.  Of one prompt the end still goes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lmcache_core import AccessFacts, EvictionPolicy, InsertFacts
from lmcache_policies.eviction.algorithm import Algorithm, MayEvict
from lmcache_policies.eviction.sized_policy import SizedPolicy
from lmcache_policies.structures.slot_table import SlotTable


class Mru(Algorithm):
    def __init__(self, table: SlotTable) -> None:
        self._lists = table.lists
        self._all = self._lists.new()

    def insert(self, slot: int, key: bytes | None) -> None:
        self._lists.append(slot, self._all)

    def hit(self, slot: int) -> None:
        self._lists.move(slot, self._all)

    def remove(self, slot: int, evicted: bool) -> None:
        self._lists.remove(slot)

    def candidates(self, may_evict: MayEvict) -> Iterator[int]:
        return filter(may_evict, self._lists.from_newest(self._all))


class MruPolicy(SizedPolicy):
    """Turns batches round: here the end of a prompt goes first when it is the newest."""

    keeps_hits = False

    def on_insert(self, slots: Sequence[int], facts: InsertFacts) -> None:
        super().on_insert(slots[::-1], facts._replace(keys=facts.keys[::-1]))

    def on_access(self, slots: Sequence[int], facts: AccessFacts) -> None:
        super().on_access(slots[::-1], facts)


def open_mru(settings: None) -> EvictionPolicy:
    return MruPolicy(Mru)
