"""The default store and prefetch policies."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core.contracts.policies import (
    AdapterFacts,
    PrefetchPlan,
    PrefetchPolicy,
    StoredObject,
    StorePlan,
    StorePolicy,
)
from lmcache_core.model.results import Bitmap


class StoreEverywhere(StorePolicy):
    """Every object goes to every healthy adapter, and stays in L1."""

    def plan(self, objects: Sequence[StoredObject], adapters: Sequence[AdapterFacts]) -> StorePlan:
        healthy = tuple(index for index, adapter in enumerate(adapters) if adapter.healthy)
        return StorePlan((healthy,) * len(objects))


class LoadFromFirst(PrefetchPolicy):
    """Each object comes from the first healthy adapter that has it, and leaves L1 with its last reader."""

    def plan(self, found: Sequence[Bitmap], adapters: Sequence[AdapterFacts]) -> PrefetchPlan:
        sources: list[int | None] = [None] * (found[0].size if found else 0)
        for index in reversed(range(len(found))):
            if not adapters[index].healthy:
                continue
            for position in found[index]:
                sources[position] = index
        return PrefetchPlan(tuple(sources))


def open_store_everywhere(settings: None) -> StorePolicy:
    return StoreEverywhere()


def open_load_from_first(settings: None) -> PrefetchPolicy:
    return LoadFromFirst()
