"""The least hit density goes first: the fewest hits to be expected for a slot and second.

Beckmann, Chen, Cidon: LHD, improving cache hit rate by maximizing hit density (NSDI 2018),
https://www.usenix.org/conference/nsdi18/presentation/beckmann

From there come the density as the rank, its estimate by age, and classes of objects.  Our own are the classes, what is
counted, and where victims are looked for:

kinds       ASKED objects, which more than one request asked for lately, whether they stayed in the cache or not
            (`RecentKeys`); NEW ones; and the LAST chunk of a prompt, which a longer prompt with the same beginning
            may cut elsewhere.
counting    how soon objects of a kind are asked for again is learned from requests, not from what the cache kept
            (`ReuseMonitor`), and the density is the Gittins index of that (`hit_densities`).
victims     slots of one kind, size and salt form a list from the oldest to the newest.  The density is a function of
            kind and age, so the victim is at an end of a list: the oldest where interest fades, the newest where
            objects come back after a time that is too long to wait for.

Before anything is learned the order is least recently used; and so it is while that is seen to serve more requests
(`OrderJudge`).  Size does not count: a hit is worth what its slot holds.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from math import inf
from typing import Final, cast

from lmcache_core import AccessFacts, EvictionDemand, EvictionPolicy, InsertFacts, RequestFacts
from lmcache_policies.eviction.hit_density import Table, age_bucket
from lmcache_policies.eviction.recent_keys import RecentKeys
from lmcache_policies.eviction.reuse_monitor import ReuseMonitor
from lmcache_policies.structures.slot_lists import END
from lmcache_policies.structures.slot_table import SlotTable

LAST, NEW, ASKED = range(3)  # of one prompt the last kind comes first, and the first one goes first
_NEWEST_EXCUSE: Final = 1.2
"""Densities are estimates: the newest of a list goes before its oldest only where it is worse by this factor."""
_PRIME: Final = 0xFFFFFFFFFFFFFFC5
_SPREAD: Final = 0x9E3779B97F4A7C15
_WORD: Final = 0xFFFFFFFFFFFFFFFF


@dataclass(frozen=True, slots=True)
class _Pool:
    """Slots of one size and salt: a list for each kind."""

    slot_bytes: int
    salt: str
    lists: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _End:
    """Where a list is eaten from, and what is left of it from there."""

    slots: Iterator[int]
    table: Table | None
    is_oldest: bool

    def rank(self, age: float, stamp: int) -> tuple[float, float]:
        """The lowest goes first."""
        density = self.table[age_bucket(age)] if self.table else 0.0
        return (density, stamp) if self.is_oldest else (_NEWEST_EXCUSE * density, inf)


class LeastHitDensity(EvictionPolicy):
    """A batch is in prompt order and its last chunk goes first, because a prefix is of no use without its beginning."""

    isolates_salts = True

    def __init__(self, monitor: ReuseMonitor) -> None:
        self._table = SlotTable()
        self._lists = self._table.lists
        columns = self._table.columns
        # A typecode of its own: this one holds no integers.
        self._seconds = cast("array[float]", columns.numbers("seconds", "d"))
        self._stamp = columns.numbers("stamp", "Q")
        """The same for what one request did at a stretch; later requests have higher ones."""
        self._word = columns.numbers("word", "Q")
        """64 bits of its key; 0 where keys are unknown."""
        self._pools: dict[tuple[int, str], _Pool] = {}
        self._pool_of: dict[int, _Pool] = {}
        """By list."""
        self._resident = 0
        self._now = 0.0
        self._stamped = 0
        self._last_request = 0
        self._recent = RecentKeys()
        self._monitor = monitor

    def on_insert(self, slots: Sequence[int], facts: InsertFacts) -> None:
        if not slots:
            return
        self._table.columns.make_room(max(slots) + 1)
        self.on_remove(slots)
        self._begin(facts.request)
        lists = self._pool(facts.slot_bytes, facts.space.cache_salt).lists
        words = [_word_of(key) for key in facts.keys] or [0] * len(slots)
        kinds = self._kinds_of(words, facts.request.prompt_chunks - 1 - facts.first_chunk)
        for slot, word, kind in zip(reversed(slots), reversed(words), reversed(kinds), strict=True):
            self._word[slot] = word
            self._append(slot, lists[kind])
            self._resident += 1
            if word and self._monitor.is_watched(word):
                self._monitor.tell(word, kind, self._now, False, self._resident)

    def on_access(self, slots: Sequence[int], facts: AccessFacts) -> None:
        self._begin(facts.request)
        for slot in reversed(slots):
            if self._knows(slot):
                number = self._lists.remove(slot)
                self._append(slot, self._pool_of[number].lists[ASKED])
                if (word := self._word[slot]) and self._monitor.is_watched(word):
                    self._monitor.tell(word, ASKED, self._now, True, self._resident)

    def on_remove(self, slots: Sequence[int]) -> None:
        for slot in slots:
            if self._knows(slot):
                number = self._lists.remove(slot)
                self._resident -= 1
                if not self._lists.length(number):
                    self._forget_if_empty(self._pool_of[number])

    def victims(self, demand: EvictionDemand, may_evict: Callable[[int], bool]) -> Sequence[int]:
        chosen: dict[int, None] = {}
        pools = list(self._pools.values())
        for salt, wanted in demand.by_salt.items():
            self._choose(chosen, wanted, [pool for pool in pools if pool.salt == salt], may_evict)
        for slot_bytes, wanted in demand.by_slot_bytes.items():
            self._choose(chosen, wanted, [pool for pool in pools if pool.slot_bytes == slot_bytes], may_evict)
        self._choose(chosen, demand.any_bytes, pools, may_evict)
        return tuple(chosen)

    def _choose(
        self, chosen: dict[int, None], wanted: int, pools: Sequence[_Pool], may_evict: Callable[[int], bool]
    ) -> None:
        """Add slots of these pools until they hold `wanted` bytes more."""
        if wanted <= 0:
            return
        for slot in self._least_dense(pools):
            if slot in chosen or not may_evict(slot):
                continue
            chosen[slot] = None
            wanted -= self._pool_of[self._lists.list_of(slot)].slot_bytes
            if wanted <= 0:
                return

    def _least_dense(self, pools: Sequence[_Pool]) -> Iterator[int]:
        """All slots of these pools, some twice: from the ends of the lists, whichever end is the worst."""
        seconds, stamp, now = self._seconds, self._stamp, self._now
        heap: list[tuple[tuple[float, float], int, int, _End]] = []
        for end in self._ends(pools):
            if (slot := next(end.slots, END)) != END:
                heap.append((end.rank(now - seconds[slot], stamp[slot]), len(heap), slot, end))
        heapify(heap)
        while heap:
            rank, number, slot, end = heap[0]
            yield slot
            if (following := next(end.slots, END)) == END:
                heappop(heap)
                continue
            if stamp[following] != stamp[slot]:
                rank = end.rank(now - seconds[following], stamp[following])
            heapreplace(heap, (rank, number, following, end))

    def _ends(self, pools: Sequence[_Pool]) -> Iterator[_End]:
        tables = self._monitor.densities if self._monitor.trusted else None
        for pool in pools:
            for kind, number in enumerate(pool.lists):
                table = tables[kind] if tables else None
                yield _End(self._lists.from_oldest(number), table, is_oldest=True)
                if table:
                    yield _End(self._from_newest(number), table, is_oldest=False)

    def _from_newest(self, number: int) -> Iterator[int]:
        """Request by request, the newest first, but of each the last chunk first."""
        older, newer, stamp = self._lists.older, self._lists.newer, self._stamp
        last = self._lists.newest(number)
        while last != END:
            slot = last
            while (beyond := older[slot]) != END and stamp[beyond] == stamp[last]:
                slot = beyond
            while slot != last:
                yield slot
                slot = newer[slot]
            yield last
            last = beyond

    def _kinds_of(self, words: Sequence[int], last: int) -> list[int]:
        """Of a batch; `last` is the place in it that the last chunk of the prompt has, if it has one."""
        kinds, asked = [], True
        for place, word in enumerate(words):
            # A prefix was asked for as far as all of it was.
            asked = word != 0 and self._recent.meet(word, self._resident) and asked
            kinds.append(LAST if place == last else ASKED if asked else NEW)
        return kinds

    def _begin(self, request: RequestFacts) -> None:
        self._now = request.seconds
        if not request.request or request.request != self._last_request:
            self._stamped += 1
            self._last_request = request.request

    def _append(self, slot: int, number: int) -> None:
        self._lists.append(slot, number)
        self._seconds[slot] = self._now
        self._stamp[slot] = self._stamped

    def _knows(self, slot: int) -> bool:
        return slot < len(self._table.columns) and self._lists.list_of(slot) != END

    def _pool(self, slot_bytes: int, salt: str) -> _Pool:
        if (pool := self._pools.get((slot_bytes, salt))) is None:
            pool = _Pool(slot_bytes, salt, tuple(self._lists.new() for _ in range(3)))
            self._pools[slot_bytes, salt] = pool
            self._pool_of.update(dict.fromkeys(pool.lists, pool))
        return pool

    def _forget_if_empty(self, pool: _Pool) -> None:
        if any(map(self._lists.length, pool.lists)):
            return
        del self._pools[pool.slot_bytes, pool.salt]
        for number in pool.lists:
            self._lists.drop(number)
            del self._pool_of[number]


def _word_of(key: bytes) -> int:
    """64 evenly distributed bits, never 0, the same in every process; keys need not be evenly distributed."""
    word = int.from_bytes(key, "little") % _PRIME * _SPREAD & _WORD
    word = (word ^ word >> 29) * _SPREAD & _WORD
    return word ^ word >> 32 or 1


def open_least_hit_density(settings: None) -> EvictionPolicy:
    return LeastHitDensity(ReuseMonitor(kinds=3))
