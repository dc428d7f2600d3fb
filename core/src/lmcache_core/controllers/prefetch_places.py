"""Slots of L1 for what is to be loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lmcache_core.controllers.adapter_port import AdapterPort
from lmcache_core.controllers.prefetch_request import Cell, Prefetch
from lmcache_core.l1.cache import L1Cache
from lmcache_core.l1.leases import Lease, Owner, OwnerKind

_OWNER: Final = Owner(OwnerKind.CONTROLLER, "prefetch")
Leases = list[tuple[AdapterPort, Lease]]
"""What was reserved, and for whom to write.  Added to in place, so that it is known when something fails."""


class Places:
    """Belongs to the prefetch controller's thread."""

    def __init__(self, cache: L1Cache) -> None:
        self._cache = cache

    def reserve(self, prefetch: Prefetch, cells: Sequence[Cell], leases: Leases) -> dict[Cell, tuple[int, Lease]]:
        """Slots for as many of the cells as there is room for, counted from the first one across all shards, so that no
        shard has all the room and another one none."""
        places = self._reserve_by_shard(prefetch, cells, leases)
        if len(places) == len(cells):
            return places
        fair = cells[: len(places)]
        beyond = [cell for cell in places if cell not in set(fair)]
        for cell in beyond:
            slot, lease = places.pop(cell)
            self._cache.discard(lease, [slot])
        if beyond:
            places |= self._reserve_by_shard(prefetch, [cell for cell in fair if cell not in places], leases)
        return places

    def _reserve_by_shard(
        self, prefetch: Prefetch, cells: Sequence[Cell], leases: Leases
    ) -> dict[Cell, tuple[int, Lease]]:
        groups: dict[tuple[AdapterPort, bytes], list[Cell]] = {}
        for cell in cells:
            source = prefetch.sources[cell][0]
            groups.setdefault((source.port, source.record.prefix), []).append(cell)
        places: dict[Cell, tuple[int, Lease]] = {}
        for (port, _), group in groups.items():
            record = prefetch.sources[group[0]][0].record
            hashes = [prefetch.chunk_hashes[cell.chunk] for cell in group]
            lease, indexes = self._cache.reserve(_OWNER, record, hashes, None)
            slots = list(lease.slots)
            if slots:
                leases.append((port, lease))
            else:
                self._cache.leases.end(lease)
            places |= {group[index]: (slot, lease) for index, slot in zip(indexes, slots, strict=True)}
        return places
