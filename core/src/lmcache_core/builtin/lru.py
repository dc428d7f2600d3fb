"""Least recently used goes first.

Slots of one size form a list from the oldest to the newest, linked through arrays that are indexed by slot number.  A
slot costs 18 bytes, and each step of an operation is a few array accesses however many slots there are.

    older[s] <- s -> newer[s]        _END stops the list on both sides
    owner[s]                         0: not known, else the number of its list, counted from 1
    stamp[s]                         when it was last touched; orders the lists among each other
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from typing import Final

from lmcache_core.contracts.policies import AccessFacts, EvictionDemand, EvictionPolicy, InsertFacts

_END: Final = -1


class LeastRecentlyUsed(EvictionPolicy):
    """A batch is in prompt order and its last chunk is the oldest, because a prefix is of no use without its beginning
    but of some use without its end."""

    def __init__(self) -> None:
        self._older = array("i")
        self._newer = array("i")
        self._owner = array("H")
        self._stamp = array("Q")
        self._numbers: dict[int, int] = {}
        self._sizes: list[int] = []
        self._oldest: list[int] = []
        self._newest: list[int] = []
        self._now = 0

    def on_insert(self, slots: Sequence[int], facts: InsertFacts) -> None:
        if not slots:
            return
        self._make_room(max(slots) + 1)
        number = self._number_of(facts.slot_bytes)
        for slot in reversed(slots):
            if self._owner[slot]:
                self._unlink(slot)
            self._append(slot, number)

    def on_access(self, slots: Sequence[int], facts: AccessFacts) -> None:
        owner, known = self._owner, len(self._owner)
        for slot in reversed(slots):
            if slot < known and (number := owner[slot]):
                self._unlink(slot)
                self._append(slot, number)

    def on_remove(self, slots: Sequence[int]) -> None:
        for slot in slots:
            if slot < len(self._owner) and self._owner[slot]:
                self._unlink(slot)
                self._owner[slot] = 0

    def victims(self, demand: EvictionDemand, may_evict: Callable[[int], bool]) -> Sequence[int]:
        chosen: dict[int, None] = {}
        for slot_bytes, wanted in demand.by_slot_bytes.items():
            if number := self._numbers.get(slot_bytes):
                self._choose(chosen, wanted, self._from_oldest(number), may_evict)
        if demand.any_bytes > 0:
            self._choose(chosen, demand.any_bytes, self._all_from_oldest(), may_evict)
        return tuple(chosen)

    def _choose(
        self, chosen: dict[int, None], wanted: int, candidates: Iterator[int], may_evict: Callable[[int], bool]
    ) -> None:
        """Add candidates until they hold `wanted` bytes."""
        if wanted <= 0:
            return
        for slot in candidates:
            if slot in chosen or not may_evict(slot):
                continue
            chosen[slot] = None
            wanted -= self._sizes[self._owner[slot] - 1]
            if wanted <= 0:
                return

    def _all_from_oldest(self) -> Iterator[int]:
        lists = [self._from_oldest(number) for number in self._numbers.values()]
        return lists[0] if len(lists) == 1 else merge(*lists, key=self._stamp.__getitem__)

    def _from_oldest(self, number: int) -> Iterator[int]:
        slot = self._oldest[number - 1]
        while slot != _END:
            yield slot
            slot = self._newer[slot]

    def _append(self, slot: int, number: int) -> None:
        """Make it the newest of its list."""
        self._now += 1
        last = self._newest[number - 1]
        self._older[slot] = last
        self._newer[slot] = _END
        self._owner[slot] = number
        self._stamp[slot] = self._now
        self._newest[number - 1] = slot
        if last == _END:
            self._oldest[number - 1] = slot
        else:
            self._newer[last] = slot

    def _unlink(self, slot: int) -> None:
        number = self._owner[slot] - 1
        older, newer = self._older[slot], self._newer[slot]
        if older == _END:
            self._oldest[number] = newer
        else:
            self._newer[older] = newer
        if newer == _END:
            self._newest[number] = older
        else:
            self._older[newer] = older

    def _number_of(self, slot_bytes: int) -> int:
        if slot_bytes not in self._numbers:
            self._sizes.append(slot_bytes)
            self._oldest.append(_END)
            self._newest.append(_END)
            self._numbers[slot_bytes] = len(self._sizes)
        return self._numbers[slot_bytes]

    def _make_room(self, count: int) -> None:
        """Slots below `count` can be tracked.  Doubles, so that growing costs nothing per slot in the end."""
        if (missing := count - len(self._owner)) <= 0:
            return
        grow = max(missing, len(self._owner))
        for column in (self._older, self._newer, self._owner, self._stamp):
            column.frombytes(bytes(grow * column.itemsize))


def open_lru(settings: None) -> EvictionPolicy:
    return LeastRecentlyUsed()
