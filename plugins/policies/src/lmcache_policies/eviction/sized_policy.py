"""An eviction policy that runs one algorithm for each slot size.

Algorithms reason about places in a cache, which are alike; slots of two sizes are not.  So each size is a cache of its
own.  Bytes that may come from any size are taken from all, in proportion to what they use.  One model under one layout
has one size, and then all of this comes down to the algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from lmcache_core import AccessFacts, EvictionDemand, EvictionPolicy, InsertFacts
from lmcache_policies.eviction.algorithm import Algorithm, MayEvict
from lmcache_policies.structures.slot_table import SlotTable

_REQUEST_BITS: Final = 0xFFFFFFFFFFFFFFFF


class SizedPolicy(EvictionPolicy):
    """Order within a batch is prompt order, and the algorithm gets its last chunk first: a prefix is of no use
    without its beginning but of some use without its end.  What one request stores, hits and hits again counts once.

    A slot costs 25 bytes here, and what the algorithm adds."""

    def __init__(self, algorithm: Callable[[SlotTable], Algorithm]) -> None:
        self._new_algorithm = algorithm
        self._table = SlotTable()
        columns = self._table.columns
        self._owner = columns.numbers("owner", "I")
        """0: not known, else the number of its size, counted from 1."""
        self._request = columns.numbers("request", "Q")
        """The request that used it last."""
        self._named = columns.numbers("named", "B")
        """1: a victim, unless it is hit before it is removed."""
        self._numbers: dict[int, int] = {}
        self._sizes: list[int] = []
        self._algorithms: list[Algorithm] = []
        self._slots: list[int] = []
        """How many there are of each size."""
        self._due: list[float] = []
        """Bytes of each size that should have gone and have not, or less than 0: what rounding leaves to the next time,
        and what was held."""

    def on_insert(self, slots: Sequence[int], facts: InsertFacts) -> None:
        if not slots:
            return
        self._table.columns.make_room(max(slots) + 1)
        number = self._number_of(facts.slot_bytes)
        algorithm = self._algorithms[number - 1]
        request = facts.request.request & _REQUEST_BITS
        keys: Iterable[bytes | None] = reversed(facts.keys) if facts.keys else (None for _ in slots)
        for slot, key in zip(reversed(slots), keys, strict=True):
            if self._owner[slot]:
                self._remove(slot, evicted=False)
            self._owner[slot] = number
            self._slots[number - 1] += 1
            self._request[slot] = request
            algorithm.insert(slot, key)

    def on_access(self, slots: Sequence[int], facts: AccessFacts) -> None:
        owner, known = self._owner, len(self._owner)
        request = facts.request.request & _REQUEST_BITS
        for slot in reversed(slots):
            if slot >= known or not (number := owner[slot]):
                continue
            self._named[slot] = 0
            if request and self._request[slot] == request:
                continue
            self._request[slot] = request
            self._algorithms[number - 1].hit(slot)

    def on_remove(self, slots: Sequence[int]) -> None:
        for slot in slots:
            if slot < len(self._owner) and self._owner[slot]:
                self._remove(slot, evicted=self._named[slot] == 1)

    def victims(self, demand: EvictionDemand, may_evict: MayEvict) -> Sequence[int]:
        # One walk per size for the whole demand: what was named for a waiting store must not be counted twice.
        walks = [algorithm.candidates(may_evict) for algorithm in self._algorithms]
        victims: list[int] = []
        for slot_bytes, wanted in demand.by_slot_bytes.items():
            if number := self._numbers.get(slot_bytes):
                victims += islice(walks[number - 1], _slots_in(wanted, slot_bytes))
        if len(walks) == 1:
            victims += islice(walks[0], _slots_in(demand.any_bytes, self._sizes[0]))
        else:
            victims += self._from_all(walks, demand.any_bytes)
        for slot in victims:
            self._named[slot] = 1
        return victims

    def _from_all(self, walks: Sequence[Iterator[int]], wanted: int) -> Iterator[int]:
        """Candidates that hold `wanted` bytes, each from the size that most is due from."""
        used = [slots * slot_bytes for slots, slot_bytes in zip(self._slots, self._sizes, strict=True)]
        self._due = [max(-part, min(due, part)) for part, due in zip(used, self._due, strict=True)]
        shares = [part / max(sum(used), 1) for part in used]
        indexes = set(range(len(walks)))
        while wanted > 0 and indexes:
            index = max(indexes, key=self._due.__getitem__)
            slot = next(walks[index], None)
            if slot is None:
                indexes.remove(index)
                continue
            yield slot
            wanted -= self._sizes[index]
            self._due[index] -= self._sizes[index]
            for other, share in enumerate(shares):
                self._due[other] += self._sizes[index] * share

    def _remove(self, slot: int, evicted: bool) -> None:
        index = self._owner[slot] - 1
        self._algorithms[index].remove(slot, evicted)
        self._slots[index] -= 1
        self._owner[slot] = 0
        self._named[slot] = 0

    def _number_of(self, slot_bytes: int) -> int:
        if slot_bytes not in self._numbers:
            self._sizes.append(slot_bytes)
            self._algorithms.append(self._new_algorithm(self._table))
            self._slots.append(0)
            self._due.append(0.0)
            self._numbers[slot_bytes] = len(self._sizes)
        return self._numbers[slot_bytes]


def _slots_in(wanted_bytes: int, slot_bytes: int) -> int:
    """How many it takes to hold that many bytes."""
    return max(0, -(-wanted_bytes // slot_bytes))
