"""L1, what moves objects between it and L2, and the verbs over both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lmcache_core.app.common_parts import CommonParts
from lmcache_core.app.open_eviction_policy import open_eviction_policy
from lmcache_core.app.quota_setting import quota_bytes
from lmcache_core.app.running_settings import RunningSettings
from lmcache_core.contracts.policies import PrefetchPolicy, StorePolicy
from lmcache_core.controllers.adapter_port import AdapterPort
from lmcache_core.controllers.eviction import EvictionController
from lmcache_core.controllers.prefetch import PrefetchController
from lmcache_core.controllers.quota import Quotas
from lmcache_core.controllers.store import StoreController
from lmcache_core.l1.arena import Arena
from lmcache_core.l1.cache import L1Cache
from lmcache_core.storage.manager import StorageManager

GIB = 2**30


class Tiers(NamedTuple):
    cache: L1Cache
    store: StoreController
    prefetch: PrefetchController
    eviction: EvictionController
    quotas: Quotas
    storage: StorageManager
    isolates_salts: bool
    """Of the eviction policy."""


def open_tiers(common: CommonParts, arena: Arena, ports: Sequence[AdapterPort]) -> Tiers:
    """L1, what moves objects between it and L2, and the verbs over both."""
    settings, plugins, offers = common.settings, common.plugins, common.offers
    clock, bus = common.clock, common.bus
    cache = L1Cache(arena, settings.l1_align_bytes, common.kernels)
    store = StoreController(
        cache,
        ports,
        offers.store_policy.open_as(StorePolicy, plugins),
        RunningSettings.of(settings).store_limits(settings.l1_size_gb),
        clock,
        bus,
    )
    prefetch = PrefetchController(
        cache,
        ports,
        offers.prefetch_policy.open_as(PrefetchPolicy, plugins),
        settings.l2_prefetch_max_in_flight,
        clock,
        bus,
        lookup_timeout_seconds=settings.lookup_timeout_seconds,
        l1_max_bytes=int(arena.size_bytes * settings.l1_prefetch_max_ratio),
    )
    policy = open_eviction_policy(offers.eviction_policy, plugins, common.kernels)
    quotas = Quotas(cache, offers.eviction_policy.name, policy.isolates_salts, bus)
    quotas.begin(quota_bytes(settings.quota), _bytes(settings.default_quota_gb))
    eviction = EvictionController(cache, policy, settings.eviction_trigger_watermark, settings.eviction_ratio, bus)
    storage = StorageManager(
        cache,
        store,
        prefetch,
        settings.l1_read_ttl_seconds,
        settings.l1_write_ttl_seconds,
        clock,
        bus,
        settings.l1_allocation_wait_ms / 1000,
        pin_max_bytes=int(arena.size_bytes * settings.l1_pin_max_ratio),
    )
    return Tiers(cache, store, prefetch, eviction, quotas, storage, policy.isolates_salts)


def _bytes(gigabytes: float | None) -> int | None:
    return None if gigabytes is None else round(gigabytes * GIB)
