"""Samples of what engines asked for and got, by model and cache salt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from lmcache_core import BOUNDS_SECONDS, Durations, Sample, Tenant, TenantCounts
from lmcache_observability.samples.kinds import counter, histogram, kinds_in

_TENANT: Final = ("model_name", "cache_salt")

LOOKUPS: Final = counter("lmcache_mp.lookups", "requests", "Lookups that were answered.", *_TENANT)
LOOKUP_TIMES: Final = histogram(
    "lmcache.lookup.duration",
    "s",
    "From a lookup to its answer; `tier` is where its hit came from (none, l1 or l2).",
    BOUNDS_SECONDS,
    "model_name",
    "tier",
)
EARLY_EXITS: Final = counter(
    "lmcache_mp.lookup_early_exit",
    "requests",
    "Lookups that could find nothing: no worker of the model is registered (no_worker), or the salt is not served "
    "(unsalted).  They are among lmcache_mp.lookups, too.",
    *_TENANT,
    "reason",
)
ABANDONED: Final = counter(
    "lmcache.lookup.abandoned",
    "{lookup}",
    "Lookups that were superseded, ended or timed out before there was an answer; nothing else counts them.",
    *_TENANT,
)
REQUESTED: Final = counter(
    "lmcache_mp.lookup_requested",
    "tokens",
    "Tokens of the prompts of answered lookups, last partial chunks included.",
    *_TENANT,
)
HIT: Final = counter("lmcache_mp.lookup_hit", "tokens", "Of these, tokens that were found.", *_TENANT)
HIT_L1: Final = counter("lmcache_mp.lookup_hit_l1", "tokens", "Of these, tokens that L1 had at once.", *_TENANT)
HIT_L2: Final = counter(
    "lmcache_mp.lookup_hit_l2", "tokens", "Of the tokens that were found, those that were brought from L2.", *_TENANT
)
MISSED: Final = counter(
    "lmcache.lookup.missed", "{token}", "Tokens that were not found: those requested without those found.", *_TENANT
)
CHUNKS: Final = counter(
    "lmcache.lookup.chunks",
    "{chunk}",
    "Whole chunks of the prompts of answered lookups, by where they were found: l1, l2 or missed.",
    *_TENANT,
    "result",
)
HIT_L1_KEYS: Final = counter(
    "lmcache_mp.lookup_hit_l1_keys",
    "keys",
    "Objects that answers hold and L1 had at once: one for each shard of a chunk.",
    *_TENANT,
)
HIT_L2_KEYS: Final = counter(
    "lmcache_mp.lookup_hit_l2_keys", "keys", "Objects that answers hold and that were brought from L2.", *_TENANT
)
L1_WRITE: Final = counter("lmcache_mp.l1_write", "chunks", "Chunks that workers published in L1.", *_TENANT)
L1_READ: Final = counter("lmcache_mp.l1_read", "chunks", "Chunks that workers were given to read.", *_TENANT)
L1_IO: Final = counter(
    "lmcache.l1.io", "By", "Payload bytes that workers stored (write) or were given (read).", *_TENANT, "direction"
)
TRANSFERS: Final = counter(
    "lmcache.l1.transfers",
    "{transfer}",
    "Commits of stores, done or late (their slots had run out), and retrieves that were served.",
    *_TENANT,
    "direction",
    "result",
)
REFUSED: Final = counter(
    "lmcache_mp.l1_allocation_failure",
    "chunks",
    "Chunks that L1 did not take, by reason: no_room, quota, too_many_transfers, frozen or stopping.",
    *_TENANT,
    "during",
    "reason",
)
REFUSED_BYTES: Final = counter("lmcache.l1.refused", "By", "The same in payload bytes.", *_TENANT, "reason")
UNREAD: Final = counter(
    "lmcache_mp.l1_read_failure",
    "chunks",
    "Chunks of retrieves that were not served, by reason: missing, overwritten or too_many_transfers.",
    *_TENANT,
    "during",
    "reason",
)

KINDS: Final = kinds_in(globals())


def tenant_samples(rows: Mapping[Tenant, TenantCounts]) -> Iterator[Sample]:
    for tenant, row in rows.items():
        yield from _lookups(tenant, row)
        yield from _transfers(tenant, row)
    yield from _lookup_times(rows)


def _lookups(tenant: Tenant, row: TenantCounts) -> Iterator[Sample]:
    yield LOOKUPS.of(row.lookups, *tenant)
    yield ABANDONED.of(row.abandoned, *tenant)
    yield REQUESTED.of(row.requested_tokens, *tenant)
    yield HIT.of(row.hit_tokens, *tenant)
    yield HIT_L1.of(row.hit_l1_tokens, *tenant)
    yield HIT_L2.of(row.hit_l2_tokens, *tenant)
    yield MISSED.of(row.missed_tokens, *tenant)
    yield CHUNKS.of(row.hit_l1_chunks, *tenant, "l1")
    yield CHUNKS.of(row.hit_l2_chunks, *tenant, "l2")
    yield CHUNKS.of(row.missed_chunks, *tenant, "missed")
    yield HIT_L1_KEYS.of(row.hit_l1_objects, *tenant)
    yield HIT_L2_KEYS.of(row.hit_l2_objects, *tenant)
    for reason, count in row.early_exits.items():
        yield EARLY_EXITS.of(count, *tenant, reason)


def _lookup_times(rows: Mapping[Tenant, TenantCounts]) -> Iterator[Sample]:
    """By model: a distribution of each salt would be twenty series of it."""
    found: dict[tuple[str, str], Durations] = {}
    for (model_name, _), row in rows.items():
        for tier, times in row.lookup_times.items():
            found.setdefault((model_name, tier), Durations()).add(times)
    for labels, times in found.items():
        yield LOOKUP_TIMES.histogram_of(times.histogram(), *labels)


def _transfers(tenant: Tenant, row: TenantCounts) -> Iterator[Sample]:
    yield L1_WRITE.of(row.stored_chunks, *tenant)
    yield L1_READ.of(row.retrieved_chunks, *tenant)
    yield L1_IO.of(row.stored_bytes, *tenant, "write")
    yield L1_IO.of(row.retrieved_bytes, *tenant, "read")
    yield TRANSFERS.of(row.stores, *tenant, "store", "done")
    yield TRANSFERS.of(row.stores_late, *tenant, "store", "late")
    yield TRANSFERS.of(row.retrieves, *tenant, "retrieve", "done")
    for reason, count in row.refused_chunks.items():
        yield REFUSED.of(count, *tenant, "store", reason)
    for reason, size in row.refused_bytes.items():
        yield REFUSED_BYTES.of(size, *tenant, reason)
    for reason, count in row.unread_chunks.items():
        yield UNREAD.of(count, *tenant, "retrieve", reason)
