"""Samples of L1: memory, contents, references, and evictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import nlargest
from typing import Final

from lmcache_core import OTHER_TENANT, TENANTS_MAX, L1Counts, Quota, Sample, SlotCounts
from lmcache_observability.samples.kinds import counter, gauge, kinds_in

_TIER: Final = ("l1_tag", "backend")
_TAG: Final = "_default"

USED: Final = gauge("lmcache_mp.l1_memory_usage_bytes", "", "Bytes of the slots that are not free.", *_TIER)
USED_RATIO: Final = gauge("lmcache_mp.l1_usage_ratio", "", "The same as a part of the capacity.", *_TIER)
CAPACITY: Final = gauge("lmcache.l1.capacity", "By", "Size of L1.")
BACKED: Final = gauge("lmcache.l1.backed", "By", "Of the capacity, what has memory pages.")
SLOTS: Final = gauge("lmcache.l1.slots", "{slot}", "Slots by state: free, cached, held or quarantined.", "state")
OBJECTS: Final = gauge("lmcache.l1.objects", "{object}", "Objects that can be found.")
LEASES: Final = gauge(
    "lmcache.l1.leases", "{lease}", "Leases by who owns them: lookup, worker, controller or pin.", "owner"
)
PINNED: Final = gauge("lmcache.l1.pinned", "By", "Bytes of the slots that operators have pinned.")
SLABS: Final = gauge("lmcache.l1.slabs", "{slab}", "Slabs by the size of their slots.", "slot_bytes")
STORES_WAITING: Final = gauge("lmcache.l1.stores_waiting", "{store}", "Stores that wait for room right now.")
STORE_WAITS: Final = counter("lmcache.l1.store_waits", "{wait}", "Times that a store had to wait for room.")
SALT_USED: Final = gauge(
    "lmcache.l1.salt.usage",
    "By",
    f"Bytes of a salt's slots; beyond {TENANTS_MAX} salts, those of the smallest together.",
    "cache_salt",
)
QUOTA: Final = gauge(
    "lmcache.quota.limit",
    "By",
    f"What a salt may use of L1, where it has a limit of its own; of the first {TENANTS_MAX} by use.",
    "cache_salt",
)
EVICTED: Final = counter(
    "lmcache_mp.l1_evicted",
    "chunks",
    "Objects that left to make room, by reason: evicted or quota.",
    "cache_salt",
    "reason",
)
EVICTED_BYTES: Final = counter("lmcache.l1.evicted", "By", "The same in bytes of their slots.", "cache_salt", "reason")
EVICTION_TICKS: Final = counter("lmcache_mp.l1_eviction_loop_ticks", "1", "Rounds of the eviction controller.")
EVICTION_TRIGGERED: Final = counter(
    "lmcache_mp.l1_eviction_loop_triggered", "1", "Rounds in which room was to be made."
)
EXPIRED: Final = counter(
    "lmcache.l1.expired", "{slot}", "Slots whose holds passed their deadline: dropped or quarantined.", "result"
)
OVERWRITTEN: Final = counter(
    "lmcache.l1.overwritten",
    "{object}",
    "Objects that were dropped because their bytes had changed since they were published (--l1-verify-reads).",
)

KINDS: Final = kinds_in(globals())


def l1_samples(counts: L1Counts) -> Iterator[Sample]:
    yield from _slots(counts.slots, counts.kind)
    yield BACKED.of(counts.backed_bytes)
    yield OBJECTS.of(counts.objects)
    for owner, count in counts.leases.items():
        yield LEASES.of(count, owner)
    yield PINNED.of(counts.pinned_bytes)
    for slot_bytes, count in counts.slabs.items():
        yield SLABS.of(count, str(slot_bytes))
    yield STORES_WAITING.of(counts.stores_waiting)
    yield STORE_WAITS.of(counts.store_waits)
    for (salt, reason), left in counts.evictions.items():
        yield EVICTED.of(left.objects, salt, reason)
        yield EVICTED_BYTES.of(left.slot_bytes, salt, reason)
    yield EVICTION_TICKS.of(counts.eviction_rounds)
    yield EVICTION_TRIGGERED.of(counts.eviction_rounds_triggered)
    yield EXPIRED.of(counts.expired_dropped, "dropped")
    yield EXPIRED.of(counts.expired_quarantined, "quarantined")
    if counts.overwritten is not None:
        yield OVERWRITTEN.of(counts.overwritten)
    yield from _salts(counts.quotas)


def _slots(counts: SlotCounts, backend: str) -> Sequence[Sample]:
    """Of one moment, so that the states add up."""
    return (
        USED.of(counts.used_bytes, _TAG, backend),
        USED_RATIO.of(counts.used_bytes / counts.capacity_bytes, _TAG, backend),
        CAPACITY.of(counts.capacity_bytes),
        SLOTS.of(counts.free, "free"),
        SLOTS.of(counts.cached, "cached"),
        SLOTS.of(counts.held, "held"),
        SLOTS.of(counts.quarantined, "quarantined"),
    )


def _salts(quotas: Sequence[Quota]) -> Iterator[Sample]:
    shown = nlargest(TENANTS_MAX, quotas, key=lambda quota: quota.used_bytes)
    for quota in shown:
        yield SALT_USED.of(quota.used_bytes, quota.salt)
        if quota.is_own and quota.limit_bytes is not None:
            yield QUOTA.of(quota.limit_bytes, quota.salt)
    if len(quotas) > len(shown):
        rest = sum(quota.used_bytes for quota in quotas) - sum(quota.used_bytes for quota in shown)
        yield SALT_USED.of(rest, OTHER_TENANT)
