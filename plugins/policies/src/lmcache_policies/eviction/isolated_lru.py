"""One LRU list for each cache salt, so that tenants do not push out one another.

Water-filling, as in max-min fair sharing: Ghodsi and others, Dominant resource fairness (NSDI 2011), section 2,
https://www.usenix.org/conference/nsdi11/dominant-resource-fairness-fair-allocation-multiple-resource-types

Room is taken from the salt that uses most, as it was last touched, until it uses no more than the next one; then from
both, and so on.  The one that uses most uses at least the average, so a salt that has less than its fair share (all
that is used, divided by the salts that have anything) loses nothing to others.  The one exception: everything of those
above is held by readers.  A salt alone may use everything.  Salts over their quota pay first, where the demand names
them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heapreplace, merge

from lmcache_core import AccessFacts, EvictionDemand, EvictionPolicy, InsertFacts
from lmcache_policies.structures.slot_table import SlotTable


class IsolatedLru(EvictionPolicy):
    """Slots of one salt and one size form a list; `touched` orders the lists of a salt among each other.  A request for
    victims costs a step per salt, and then one per victim.  Salts that have nothing are forgotten."""

    isolates_salts = True

    def __init__(self) -> None:
        self._table = SlotTable()
        self._lists = self._table.lists
        self._touched = self._table.columns.numbers("touched", "Q")
        self._now = 0
        self._groups: dict[str, dict[int, int]] = {}
        """salt -> slot bytes -> list."""
        self._group_of: dict[int, tuple[str, int]] = {}
        """list -> (salt, slot bytes)."""
        self._used: Counter[str] = Counter()
        """Bytes of each salt."""

    def on_insert(self, slots: Sequence[int], facts: InsertFacts) -> None:
        if not slots:
            return
        self._table.columns.make_room(max(slots) + 1)
        self.on_remove(slots)
        salt, slot_bytes = facts.space.cache_salt, facts.slot_bytes
        number = self._list_for(salt, slot_bytes)
        for slot in reversed(slots):
            self._lists.append(slot, number)
            self._touch(slot)
        self._used[salt] += len(slots) * slot_bytes

    def on_access(self, slots: Sequence[int], facts: AccessFacts) -> None:
        for slot in reversed(slots):
            if self._knows(slot):
                self._lists.move(slot, self._lists.list_of(slot))
                self._touch(slot)

    def on_remove(self, slots: Sequence[int]) -> None:
        for slot in slots:
            if self._knows(slot):
                number = self._lists.remove(slot)
                salt, slot_bytes = self._group_of[number]
                self._used[salt] -= slot_bytes
                if not self._lists.length(number):
                    self._forget(number)

    def victims(self, demand: EvictionDemand, may_evict: Callable[[int], bool]) -> Sequence[int]:
        victims: dict[int, None] = {}

        def may_go(slot: int) -> bool:
            return slot not in victims and may_evict(slot)

        left = Counter(self._used)
        for salt, wanted in demand.by_salt.items():
            self._take(victims, wanted, left, [self._oldest_of(salt, may_go)])
        for slot_bytes, wanted in demand.by_slot_bytes.items():
            walks = [
                self._oldest_of(salt, may_go, slot_bytes) for salt, sizes in self._groups.items() if slot_bytes in sizes
            ]
            self._take(victims, wanted, left, walks)
        self._take(victims, demand.any_bytes, left, [self._oldest_of(salt, may_go) for salt in self._groups])
        return tuple(victims)

    def _take(self, victims: dict[int, None], wanted: int, left: Counter[str], walks: Iterable[Iterator[int]]) -> None:
        """Add victims until they hold `wanted` bytes.  Each walk runs through the slots of one salt; the next victim
        comes from the salt that has most `left`, among equals the one that was touched longest ago."""
        if wanted <= 0:
            return
        heads = [self._head(slot, walk, left) for walk in walks if (slot := next(walk, None)) is not None]
        heapify(heads)
        while heads and wanted > 0:
            _, _, slot, walk = heads[0]
            salt, slot_bytes = self._group_of[self._lists.list_of(slot)]
            victims[slot] = None
            wanted -= slot_bytes
            left[salt] -= slot_bytes
            if (following := next(walk, None)) is None:
                heappop(heads)
            else:
                heapreplace(heads, self._head(following, walk, left))

    def _head(self, slot: int, walk: Iterator[int], left: Counter[str]) -> tuple[int, int, int, Iterator[int]]:
        salt, _ = self._group_of[self._lists.list_of(slot)]
        return -left[salt], self._touched[slot], slot, walk

    def _oldest_of(self, salt: str, may_go: Callable[[int], bool], slot_bytes: int | None = None) -> Iterator[int]:
        """Slots of a salt, of one size or of all, from the one that was touched longest ago."""
        numbers = [number for size, number in self._groups.get(salt, {}).items() if slot_bytes in (None, size)]
        walks = map(self._lists.from_oldest, numbers)
        return filter(may_go, merge(*walks, key=self._touched.__getitem__) if len(numbers) != 1 else next(walks))

    def _touch(self, slot: int) -> None:
        self._now += 1
        self._touched[slot] = self._now

    def _knows(self, slot: int) -> bool:
        return slot < len(self._table.columns) and self._lists.list_of(slot) >= 0

    def _list_for(self, salt: str, slot_bytes: int) -> int:
        sizes = self._groups.setdefault(salt, {})
        if slot_bytes not in sizes:
            sizes[slot_bytes] = number = self._lists.new()
            self._group_of[number] = salt, slot_bytes
        return sizes[slot_bytes]

    def _forget(self, number: int) -> None:
        salt, slot_bytes = self._group_of.pop(number)
        self._lists.drop(number)
        del self._groups[salt][slot_bytes]
        if not self._groups[salt]:
            del self._groups[salt], self._used[salt]


def open_isolated_lru(settings: None) -> EvictionPolicy:
    return IsolatedLru()
