"""Opens L1 and L2, the controllers between them, and the storage manager."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from lmcache_core.app.common_parts import CommonParts
from lmcache_core.app.l2_tier import L2Tier
from lmcache_core.app.open_arena import arena_of, open_arena, size_bytes
from lmcache_core.app.open_l2 import AdapterOpener, open_eviction_policy, open_l2
from lmcache_core.app.serdes import KnownLayouts
from lmcache_core.app.setting_groups import quota_bytes
from lmcache_core.builtin.lru import LeastRecentlyUsed
from lmcache_core.builtin.policies import LoadFromFirst, StoreEverywhere
from lmcache_core.contracts.l1_memory import L1Memory, L1MemoryContext
from lmcache_core.contracts.l2_adapter import AdapterContext
from lmcache_core.contracts.policies import EvictionPolicy, PrefetchPolicy, StorePolicy
from lmcache_core.contracts.residency import ResidencyFeed
from lmcache_core.controllers.eviction import EvictionController
from lmcache_core.controllers.prefetch import PrefetchController
from lmcache_core.controllers.quota import Quotas
from lmcache_core.controllers.store import StoreController
from lmcache_core.controllers.store_queue import DropRule, StoreLimits
from lmcache_core.jobs.fault_log import FaultLog
from lmcache_core.l1.arena import Arena
from lmcache_core.l1.cache import L1Cache
from lmcache_core.l1.read_checks import ReadChecks
from lmcache_core.storage.manager import StorageManager

logger = logging.getLogger(__name__)

GIB = 2**30


class Tiers(msgspec.Struct, frozen=True, eq=False):
    arena: Arena
    l2: L2Tier
    opener: AdapterOpener
    """Of the adapters in `l2`, and of those that come later."""
    cache: L1Cache
    store: StoreController
    prefetch: PrefetchController
    eviction: EvictionController
    quotas: Quotas
    storage: StorageManager

    def feeds(self) -> list[ResidencyFeed]:
        """Of all tiers, L1 first."""
        return [self.cache.feed, *(client.feed for client in self.l2.clients if client.feed is not None)]


def open_tiers(common: CommonParts) -> Tiers:
    """L1's memory and the adapters, which `common.undo` closes, and what uses them.  Raises LMCacheError."""
    settings = common.settings
    arena = _arena(common)
    common.undo.callback(arena.close)
    opener = _adapter_opener(common, arena)
    l2 = L2Tier(open_l2(common.l2, opener, settings.l2_timeout_seconds, common.undo), settings.l2_timeout_seconds)
    cache = L1Cache(arena, settings.l1_align_bytes, common.kernels, settings.l1_journal_entries)
    if settings.l1_verify_reads:
        remedy = "remedy='see docs/operate/security.md for who can write to L1'"
        cache.checks = ReadChecks(cache, FaultLog(logger, common.clock, remedy).error)
    store = _store(common, cache, l2)
    prefetch = _prefetch(common, cache, l2, arena)
    policy = open_eviction_policy(common.offers.eviction_policy, common.plugins, common.kernels)
    storage = _storage(common, cache, store, prefetch, arena)
    if cache.checks is not None:
        cache.checks.unpin = lambda slots: storage.pins.release(slots)
    return Tiers(
        arena=arena,
        l2=l2,
        opener=opener,
        cache=cache,
        store=store,
        prefetch=prefetch,
        quotas=_quotas(common, cache, policy),
        eviction=EvictionController(
            cache,
            policy,
            settings.eviction_trigger_watermark,
            settings.eviction_ratio,
            common.bus,
            built_in=lambda: LeastRecentlyUsed(common.kernels),
            clock=common.clock,
        ),
        storage=storage,
    )


def _arena(common: CommonParts) -> Arena:
    settings, spec = common.settings, common.offers.l1_memory
    if spec is None:
        return open_arena(settings, common.boot_id)
    context = L1MemoryContext(size_bytes(settings), settings.l1_align_bytes, common.instance_id, common.boot_id)
    return arena_of(
        spec.open_as(L1Memory, common.plugins, context), context, common.plugins.owner(spec.kind, spec.name)
    )


def _adapter_opener(common: CommonParts, arena: Arena) -> AdapterOpener:
    context = AdapterContext(
        name="",  # each adapter gets a name and a logger of its own
        instance_id=common.instance_id,
        boot_id=common.boot_id,
        regions=(arena.region,),
        align_bytes=common.settings.l1_align_bytes,
        clock=common.clock,
        events=common.bus,
        logger=logging.getLogger(__name__),
    )
    return AdapterOpener(common.plugins, context, common.kernels, common.hidden, KnownLayouts())


def store_limits(settings: Mapping[str, Any], l1_size_gb: float) -> StoreLimits:
    """`settings`: values by name."""
    gigabytes = settings["l2_store_max_backlog_gb"]
    return StoreLimits(
        int((l1_size_gb / 2 if gigabytes is None else gigabytes) * GIB),
        settings["l2_store_max_backlog_seconds"],
        DropRule(settings["l2_store_drop"]),
    )


def _store(common: CommonParts, cache: L1Cache, l2: L2Tier) -> StoreController:
    settings = common.settings
    return StoreController(
        cache,
        l2.clients,
        common.offers.store_policy.open_as(StorePolicy, common.plugins),
        store_limits(vars(settings), settings.l1_size_gb),
        common.clock,
        common.bus,
        built_in=StoreEverywhere,
    )


def _prefetch(common: CommonParts, cache: L1Cache, l2: L2Tier, arena: Arena) -> PrefetchController:
    settings = common.settings
    return PrefetchController(
        cache,
        l2.clients,
        common.offers.prefetch_policy.open_as(PrefetchPolicy, common.plugins),
        settings.l2_prefetch_max_in_flight,
        common.clock,
        common.bus,
        lookup_timeout_seconds=settings.lookup_timeout_seconds,
        l1_max_bytes=int(arena.size_bytes * settings.l1_prefetch_max_ratio),
        built_in=LoadFromFirst,
    )


def _quotas(common: CommonParts, cache: L1Cache, policy: EvictionPolicy) -> Quotas:
    settings = common.settings
    quotas = Quotas(cache, common.offers.eviction_policy.name, policy.isolates_salts, common.bus)
    default = None if settings.default_quota_gb is None else round(settings.default_quota_gb * GIB)
    quotas.begin(quota_bytes(settings.quota), default)
    return quotas


def _storage(
    common: CommonParts, cache: L1Cache, store: StoreController, prefetch: PrefetchController, arena: Arena
) -> StorageManager:
    settings = common.settings
    return StorageManager(
        cache,
        store,
        prefetch,
        settings.l1_read_ttl_seconds,
        settings.l1_write_ttl_seconds,
        common.clock,
        common.bus,
        settings.l1_allocation_wait_ms / 1000,
        pin_max_bytes=int(arena.size_bytes * settings.l1_pin_max_ratio),
    )
