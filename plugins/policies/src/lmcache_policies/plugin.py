"""What this distribution offers."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core import Offer, hookimpl

_EVICTION, _STORE, _PREFETCH = "lmcache_policies.eviction", "lmcache_policies.store", "lmcache_policies.prefetch"


@hookimpl
def lmcache_eviction_policies() -> Sequence[Offer]:
    return [
        Offer("ARC", "Used once and used again, with a border that adapts", f"{_EVICTION}.arc:open_arc"),
        Offer("FIFO", "First stored first", f"{_EVICTION}.fifo:open_fifo"),
        Offer("IsolatedLRU", "One LRU per cache salt, fair shares", f"{_EVICTION}.isolated_lru:open_isolated_lru"),
        Offer("LeastHitDensity", "Learns what comes back", f"{_EVICTION}.least_hit_density:open_least_hit_density"),
        _tunable("LFU", "Least frequently used first", "lfu", "Lfu"),
        Offer("MRU", "Most recently used first", f"{_EVICTION}.mru:open_mru"),
        Offer("noop", "Never evicts", f"{_EVICTION}.noop:open_noop"),
        _tunable("S3FIFO", "A small queue filters what is used once", "s3_fifo", "S3Fifo"),
        Offer("SIEVE", "FIFO that spares what was used", f"{_EVICTION}.sieve:open_sieve"),
        _tunable("SLRU", "LRU that protects what was used again", "slru", "Slru"),
        _tunable("W-TinyLFU", "New objects must be used more than old ones", "w_tiny_lfu", "WTinyLfu"),
    ]


@hookimpl(optionalhook=True)
def lmcache_l2_evictions() -> Sequence[Offer]:
    home = "lmcache_policies.l2_eviction.watermark"
    return [
        Offer(
            "watermark",
            "Deletes beyond a share of the capacity",
            f"{home}:open_watermark",
            f"{home}:WatermarkSettings",
        )
    ]


@hookimpl
def lmcache_store_policies() -> Sequence[Offer]:
    opener, settings = f"{_STORE}.second_use:open_second_use", f"{_STORE}.second_use:SecondUseSettings"
    return [
        Offer("second_use", "To slow backends what was used twice", opener, settings),
        Offer("skip_l1", "To every healthy backend, and out of L1", f"{_STORE}.skip_l1:open_skip_l1"),
    ]


@hookimpl
def lmcache_prefetch_policies() -> Sequence[Offer]:
    opener, settings = f"{_PREFETCH}.cost_aware:open_cost_aware", f"{_PREFETCH}.cost_aware:CostAwareSettings"
    return [
        Offer("cost_aware", "Only what is loaded sooner than computed", opener, settings),
        Offer("retain", "Loaded objects stay in L1", f"{_PREFETCH}.retain:open_retain"),
    ]


@hookimpl
def lmcache_commands() -> Sequence[Offer]:
    opener = "lmcache_policies.simulate.command:run_simulate"
    return [Offer("simulate", "Replay a trace through eviction policies", opener)]


def _tunable(name: str, summary: str, module: str, prefix: str) -> Offer:
    """An eviction policy with settings."""
    home = f"{_EVICTION}.{module}"
    return Offer(name, summary, f"{home}:open_{module}", f"{home}:{prefix}Settings")
