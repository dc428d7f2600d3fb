"""To slow backends only what was used twice: most prompts never come again, and writing them wears out a medium for
nothing.

Maggs, Sitaraman: Algorithmic nuggets in content delivery (SIGCOMM CCR 45(3), 2015), section 4, "cache on second hit",
https://doi.org/10.1145/2805789.2805800

The first use is the store.  The second is a hit in L1, or another store of what had left L1 without one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from lmcache_core import AdapterFacts, ObjectKey, PluginSettings, StoredObject, StorePlan, StorePolicy
from lmcache_policies.structures.seen_filter import SeenFilter


class SecondUseSettings(PluginSettings):
    """What must be used twice, and how long a first use is remembered."""

    first_slow_adapter: Annotated[
        int,
        Field(
            ge=0,
            description="Place in the cascade, from 0: adapters before it get everything, the others what is used twice.",
        ),
    ] = 0
    remembered_objects: Annotated[
        int,
        Field(
            ge=1024, le=1_000_000_000, description="Objects whose first use is remembered, at 8 bytes of memory each."
        ),
    ] = 4_000_000


class SecondUse(StorePolicy):
    """Fast adapters get everything when it is stored."""

    plans_hits = True

    def __init__(self, settings: SecondUseSettings) -> None:
        self._first_slow = settings.first_slow_adapter
        self._seen = SeenFilter(settings.remembered_objects)
        self._sent = SeenFilter(settings.remembered_objects)

    def plan(self, objects: Sequence[StoredObject], adapters: Sequence[AdapterFacts]) -> StorePlan:
        healthy = tuple(index for index, adapter in enumerate(adapters) if adapter.healthy)
        fast = tuple(index for index in healthy if index < self._first_slow)
        slow = healthy[len(fast) :]
        return StorePlan(tuple(self._targets(item, fast, slow) for item in objects))

    def _targets(self, item: StoredObject, fast: tuple[int, ...], slow: tuple[int, ...]) -> tuple[int, ...]:
        object_id = ObjectKey(item.space, item.chunk_hash).object_id
        if not slow:
            return () if item.hit else fast
        if item.hit:
            return () if self._sent.meet(object_id) else slow
        if not self._seen.meet(object_id):
            return fast
        self._sent.meet(object_id)
        return fast + slow


def open_second_use(settings: SecondUseSettings) -> StorePolicy:
    return SecondUse(settings)
