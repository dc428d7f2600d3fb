"""ARC: an LRU list for what was used once, one for what was used again, and a border between them that finds its own
place.

Megiddo, Modha: ARC: a self-tuning, low overhead replacement cache (FAST 2003),
https://www.usenix.org/conference/fast-03/arc-self-tuning-low-overhead-replacement-cache

Each list remembers the keys of what was evicted from it.  An object that comes back while its ghost is there says that
its list was too short, and moves the border.  Here victims are asked for apart from misses, so the paper's rule for a
tie, which looks at the missing key, does not apply; and the size of the cache is the most objects that there were at
once.
"""

from __future__ import annotations

from collections.abc import Iterator

from lmcache_core import EvictionPolicy
from lmcache_policies.eviction.algorithm import Algorithm, MayEvict
from lmcache_policies.eviction.sized_policy import SizedPolicy
from lmcache_policies.structures.ghost_keys import GhostKeys
from lmcache_policies.structures.slot_table import SlotTable


class Arc(Algorithm):
    """In the paper's letters: T1 is `once`, T2 `again`, B1 and B2 their ghosts, p `once_target`, c `capacity`."""

    def __init__(self, table: SlotTable) -> None:
        self._lists = table.lists
        self._once = self._lists.new()
        self._again = self._lists.new()
        self._once_ghosts = GhostKeys()
        self._again_ghosts = GhostKeys()
        self._keys = table.columns.objects("keys")
        self._capacity = 0
        self.once_target = 0.0
        """How many objects the list of those used once should have; 0 to capacity."""

    def insert(self, slot: int, key: bytes | None) -> None:
        once_ghosts, again_ghosts = len(self._once_ghosts), len(self._again_ghosts)
        if self._once_ghosts.take(key):
            self.once_target = min(self._capacity, self.once_target + max(again_ghosts / once_ghosts, 1))
            goes_to = self._again
        elif self._again_ghosts.take(key):
            self.once_target = max(0.0, self.once_target - max(once_ghosts / again_ghosts, 1))
            goes_to = self._again
        else:
            goes_to = self._once
        self._lists.append(slot, goes_to)
        self._keys[slot] = key
        self._capacity = max(self._capacity, self._objects())
        self._trim()

    def hit(self, slot: int) -> None:
        self._lists.move(slot, self._again)

    def remove(self, slot: int, evicted: bool) -> None:
        key, self._keys[slot] = self._keys[slot], None
        was_in = self._lists.remove(slot)
        if evicted and key is not None:
            ghosts = self._once_ghosts if was_in == self._once else self._again_ghosts
            ghosts.add(key)
            self._trim()

    def candidates(self, may_evict: MayEvict) -> Iterator[int]:
        lists = self._lists
        once = filter(may_evict, lists.from_oldest(self._once))
        again = filter(may_evict, lists.from_oldest(self._again))
        once_left = lists.length(self._once)
        while True:
            slot = next(once if once_left > self.once_target else again, None)
            if slot is None:
                break
            once_left -= lists.list_of(slot) == self._once
            yield slot
        yield from again
        yield from once

    def _objects(self) -> int:
        return self._lists.length(self._once) + self._lists.length(self._again)

    def _trim(self) -> None:
        """Used once: objects and ghosts fill the cache once at most.  All: twice."""
        self._once_ghosts.trim(self._capacity - self._lists.length(self._once))
        self._again_ghosts.trim(2 * self._capacity - self._objects() - len(self._once_ghosts))


def open_arc(settings: None) -> EvictionPolicy:
    return SizedPolicy(Arc)
