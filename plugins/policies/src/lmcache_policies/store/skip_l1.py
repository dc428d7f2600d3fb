"""Through L1 to the backends: objects leave L1 as soon as every backend has answered.

For servers that are there to fill a shared backend, whose memory is too small to serve from.
"""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core import AdapterFacts, StoredObject, StorePlan, StorePolicy


class SkipL1(StorePolicy):
    """While no backend is healthy, objects stay in L1: leaving it would lose them."""

    def plan(self, objects: Sequence[StoredObject], adapters: Sequence[AdapterFacts]) -> StorePlan:
        healthy = tuple(index for index, adapter in enumerate(adapters) if adapter.healthy)
        return StorePlan((healthy,) * len(objects), drop_from_l1=bool(healthy))


def open_skip_l1(settings: None) -> StorePolicy:
    return SkipL1()
