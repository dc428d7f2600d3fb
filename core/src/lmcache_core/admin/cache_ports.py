"""What the routes about single objects need of the server."""

from __future__ import annotations

from dataclasses import dataclass

from lmcache_core.storage.addresses import Addresses
from lmcache_core.storage.l1_objects import L1Objects
from lmcache_core.storage.l2_deletions import L2Deletions
from lmcache_core.storage.l2_keys import L2Keys
from lmcache_core.storage.pins import Pins
from lmcache_core.storage.prefetch_orders import PrefetchOrders


@dataclass(frozen=True, slots=True, eq=False)
class CachePorts:
    """They need no server: storage over any cache and any adapters will do.  All are safe from any thread, and may
    wait."""

    l1: L1Objects
    l2: L2Keys
    deletions: L2Deletions
    pins: Pins
    prefetches: PrefetchOrders
    addresses: Addresses
    chunk_tokens: int
    boot: str
    """Another one for each start of the server: pages of L1 are of one start."""
