"""Never names a victim: L1 fills up, and then stores find no room.

For runs whose working set fits, and for measurements where eviction must not play a part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lmcache_core import AccessFacts, EvictionDemand, EvictionPolicy, InsertFacts


class NoEviction(EvictionPolicy):
    evicts = False

    def on_insert(self, slots: Sequence[int], facts: InsertFacts) -> None:
        pass

    def on_access(self, slots: Sequence[int], facts: AccessFacts) -> None:
        pass

    def on_remove(self, slots: Sequence[int]) -> None:
        pass

    def victims(self, demand: EvictionDemand, may_evict: Callable[[int], bool]) -> Sequence[int]:
        return ()


def open_noop(settings: None) -> EvictionPolicy:
    return NoEviction()
