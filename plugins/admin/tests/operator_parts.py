"""What operators use, over the storage of a test."""

from __future__ import annotations

from core.tests.storage.house import House
from lmcache_admin.l1_listing import L1Listing
from lmcache_admin.prefetch_orders import PrefetchOrders
from lmcache_core.storage.cache_control import OperatorCache


def cache_of(house: House) -> OperatorCache:
    return OperatorCache(house.cache, house.storage, house.storage.pins, house.prefetch, house.clock)


def listing(house: House) -> L1Listing:
    return L1Listing(cache_of(house))


def orders_of(house: House) -> PrefetchOrders:
    """The same ones for a house whenever it is asked."""
    made: PrefetchOrders = house.__dict__.setdefault(
        "prefetch_orders", PrefetchOrders(cache_of(house), house.storage.pins, house.clock)
    )
    return made
