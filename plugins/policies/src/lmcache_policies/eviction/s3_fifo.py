"""S3-FIFO: three queues, of which a small one keeps objects that are used once away from the rest.

Yang, Zhang, Qiu, Yue, Rashmi: FIFO queues are all you need for cache eviction (SOSP 2023),
https://doi.org/10.1145/3600006.3613147

New objects wait in the small queue; those that were used twice there move to the main one, the others leave it and are
remembered as ghosts.  An object that comes back while its ghost is there goes to the main queue at once.  The main
queue gives each object another round for each use, up to three.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Final

from pydantic import Field

from lmcache_core import EvictionPolicy, PluginSettings
from lmcache_policies.eviction.algorithm import Algorithm, MayEvict
from lmcache_policies.eviction.sized_policy import SizedPolicy
from lmcache_policies.structures.ghost_keys import GhostKeys
from lmcache_policies.structures.slot_lists import END
from lmcache_policies.structures.slot_table import SlotTable

_USES_MAX: Final = 3


class S3FifoSettings(PluginSettings):
    """How the cache is divided, and what a new object must show."""

    small_share: Annotated[
        float, Field(gt=0, lt=1, description="Part of the cached objects that is for new ones, 0 to 1.")
    ] = 0.1
    promotion_hits: Annotated[
        int, Field(ge=1, le=_USES_MAX, description="Hits in the small queue that bring an object to the main one.")
    ] = 2


@dataclass(slots=True)
class _Walk:
    """The position of the search for victims in each queue; END at the end."""

    small: int
    main: int


class S3Fifo(Algorithm):
    def __init__(self, table: SlotTable, small_share: float, promotion_hits: int) -> None:
        self._share = small_share
        self._promotion_hits = promotion_hits
        self._lists = table.lists
        self._small = self._lists.new()
        self._main = self._lists.new()
        self._uses = table.columns.numbers("uses", "B")
        self._keys = table.columns.objects("keys")
        self._ghosts = GhostKeys()
        self._capacity = 0
        """The most objects that there were at once."""

    def insert(self, slot: int, key: bytes | None) -> None:
        self._lists.append(slot, self._main if self._ghosts.take(key) else self._small)
        self._uses[slot] = 0
        self._keys[slot] = key
        self._capacity = max(self._capacity, len(self))

    def hit(self, slot: int) -> None:
        if self._uses[slot] < _USES_MAX:
            self._uses[slot] += 1

    def remove(self, slot: int, evicted: bool) -> None:
        key, self._keys[slot] = self._keys[slot], None
        if self._lists.remove(slot) == self._small and evicted and key is not None:
            self._ghosts.add(key)
            self._ghosts.trim(int(self._capacity * (1 - self._share)))

    def __len__(self) -> int:
        return self._lists.length(self._small) + self._lists.length(self._main)

    def candidates(self, may_evict: MayEvict) -> Iterator[int]:
        walk = _Walk(self._lists.oldest(self._small), self._lists.oldest(self._main))
        named = named_small = 0
        while True:
            small = self._lists.length(self._small) - named_small
            if small > 0 and small >= self._share * (len(self) - named):
                slot = self._from_small(walk, may_evict)
            else:
                slot = self._from_main(walk, may_evict)
            if slot == END:
                break
            named += 1
            named_small += self._lists.list_of(slot) == self._small
            yield slot
        # One of the queues has nothing that may go; the other one may have.
        while (slot := self._from_small(walk, may_evict)) != END:
            yield slot
        while (slot := self._from_main(walk, may_evict)) != END:
            yield slot

    def _from_small(self, walk: _Walk, may_evict: MayEvict) -> int:
        lists = self._lists
        while (slot := walk.small) != END:
            walk.small = lists.newer[slot]
            if not may_evict(slot):
                continue
            if self._uses[slot] < self._promotion_hits:
                return slot
            self._uses[slot] = 0
            self._append_to_main(slot, walk)
        return END

    def _from_main(self, walk: _Walk, may_evict: MayEvict) -> int:
        while (slot := walk.main) != END:
            walk.main = self._lists.newer[slot]
            if not may_evict(slot):
                continue
            if not self._uses[slot]:
                return slot
            self._uses[slot] -= 1
            self._append_to_main(slot, walk)
        return END

    def _append_to_main(self, slot: int, walk: _Walk) -> None:
        self._lists.move(slot, self._main)
        if walk.main == END:
            walk.main = slot


def open_s3_fifo(settings: S3FifoSettings) -> EvictionPolicy:
    return SizedPolicy(partial(S3Fifo, small_share=settings.small_share, promotion_hits=settings.promotion_hits))
