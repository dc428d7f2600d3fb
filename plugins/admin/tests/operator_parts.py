"""What operators use, over the storage of a test."""

from __future__ import annotations

from core.tests.storage.storage_harness import StorageHarness
from lmcache_admin.l1_listing import L1Listing
from lmcache_admin.pins import Pins
from lmcache_admin.prefetch_orders import PrefetchOrders
from lmcache_core.storage.cache_control import OperatorCache


def cache_of(harness: StorageHarness) -> OperatorCache:
    return OperatorCache(harness.cache, harness.storage, harness.prefetch, harness.clock)


def pins_of(harness: StorageHarness) -> Pins:
    """The same ones for a harness whenever it is asked."""
    if not isinstance(harness.storage.pins, Pins):
        Pins(cache_of(harness), harness.clock)
    assert isinstance(harness.storage.pins, Pins)
    return harness.storage.pins


def listing(harness: StorageHarness) -> L1Listing:
    return L1Listing(cache_of(harness), pins_of(harness))


def orders_of(harness: StorageHarness) -> PrefetchOrders:
    """The same ones for a harness whenever it is asked."""
    made: PrefetchOrders = harness.__dict__.setdefault(
        "prefetch_orders", PrefetchOrders(cache_of(harness), pins_of(harness), harness.clock)
    )
    return made
