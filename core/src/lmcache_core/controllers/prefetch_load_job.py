"""What one adapter is asked to load at once."""

from __future__ import annotations

from dataclasses import dataclass

from lmcache_core.controllers.adapter_port import AdapterPort
from lmcache_core.controllers.prefetch_request import Cell, Prefetch, Source
from lmcache_core.l1.leases import Lease
from lmcache_core.model.keys import ObjectKey


@dataclass(slots=True, eq=False)
class Loading:
    """One object on its way, and every prefetch that waits for it."""

    key: ObjectKey
    source: Source
    chunk: int
    slot: int
    lease: Lease
    waiters: list[tuple[Prefetch, Cell]]

    @property
    def index_key(self) -> bytes:
        return self.source.record.prefix + self.key.chunk_hash


@dataclass(frozen=True, slots=True, eq=False)
class LoadJob:
    port: AdapterPort
    loads: tuple[Loading, ...]
    leases: tuple[Lease, ...]
    retain: bool
    number: int
    request_id: str
    begun: float
    object_bytes: int = 0
    """Of all loads, header pages included."""
    ahead_bytes: int = 0
    """What the adapter had under way for prefetches when this was submitted."""
