"""Everything that a running server counts, read where it is kept, for metrics and pages that plugins make of it.

Names, units and texts of metrics are the exporter's.  Counts are exact and since the start, while events can be dropped.  Those
of one part are of one moment, those of two parts can be a moment apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from lmcache_core.contracts.counts import (
    AdapterCounts,
    Evicted,
    HandshakeCounters,
    PrefetchCounts,
    RouterCounters,
    SlotCounts,
    StoreView,
    SubscriberStatus,
    Tenant,
    TenantCounts,
)
from lmcache_core.contracts.l2_adapter import CircuitStatus
from lmcache_core.contracts.l2_eviction import L2EvictionCounts
from lmcache_core.contracts.samples import Histogram
from lmcache_core.contracts.serde import SerdeCounts, SerdeDirection
from lmcache_core.contracts.server_control import Quota
from lmcache_core.model.results import Usage


class L1Counts(NamedTuple):
    """Of L1."""

    kind: str
    """`shared_memory`, `anonymous_memory`, or that of a plugin's memory."""
    slots: SlotCounts
    backed_bytes: int
    """Of the capacity, what has memory pages."""
    objects: int
    """That can be found."""
    leases: Mapping[str, int]
    """By the kind of their owner."""
    pinned_bytes: int
    slabs: Mapping[int, int]
    """By the bytes of their slots."""
    stores_waiting: int
    store_waits: int
    """Times that a store had to wait for free space."""
    evictions: Mapping[tuple[str, str], Evicted]
    """By cache salt and reason."""
    eviction_rounds: int
    eviction_rounds_triggered: int
    """Rounds in which space was to be freed for the watermark or for stores that wait."""
    expired_dropped: int
    """Slots whose leases passed their deadline, and were freed."""
    expired_quarantined: int
    """The same, and are in quarantine."""
    overwritten: int | None
    """Objects that were dropped because their bytes had changed; None without `--l1-verify-reads`."""
    quotas: Sequence[Quota]
    """Of every salt that has a limit of its own or anything in L1."""


class AdapterView(msgspec.Struct, frozen=True):
    """Of one L2 adapter."""

    name: str
    index: int
    answers: bool
    """False while a job is overdue."""
    healthy: bool
    """No condition worse than info is about it."""
    counts: AdapterCounts
    timeouts: int
    faults: int
    """Times that it raised or broke its contract."""
    circuit: CircuitStatus | None
    usage: Usage | None
    eviction: L2EvictionCounts | None
    serdes: Mapping[tuple[str, SerdeDirection], SerdeCounts]
    """Of the serdes around it."""
    serde_refusals: Mapping[str, int]
    """Objects that were given to none of them, by reason."""


class PortCounts(NamedTuple):
    """Of the engine port."""

    requests: RouterCounters
    times: Mapping[tuple[str, str], Histogram]
    """Seconds to the answer, by operation and outcome (`ok`, `error` or `refused`).  `times` is read before `requests`, so
    answered requests never exceed received ones."""
    waiting: Mapping[str, int]
    """Requests that wait for a thread, by its pool."""
    oldest_seconds: float
    """How long the oldest request has been with a thread, or waited for one."""
    unsalted: int
    """Refused because they have no cache salt."""
    connections: HandshakeCounters
    workers: Mapping[tuple[str, bool], int]
    """By model name and whether their chunks travel inline."""


class L2Counts(NamedTuple):
    """Of stores to L2 and loads from it."""

    stores: Mapping[str, StoreView]
    """By adapter."""
    backlog_bytes: int
    """What L1 holds for L2; an object that goes to several adapters counts once."""
    turned_away: int
    """Objects for which no adapter was chosen, because the store controller was too far behind."""
    prefetch: PrefetchCounts
    adapters: Sequence[AdapterView]


class ServerCounts(NamedTuple):
    """All of a server."""

    native: bool
    uptime_seconds: float
    tenants: Mapping[Tenant, TenantCounts]
    l1: L1Counts
    l2: L2Counts
    port: PortCounts
    lookups_open: int
    """Lookups whose request is not over."""
    oldest_lookup_seconds: float
    prompt_bytes: int
    """Memory of the prompts that are remembered."""
    prompt_tenants: int
    thread_restarts: Mapping[str, int]
    threads_down: int
    policy_failures: Mapping[str, int]
    """Calls that raised or returned an invalid value, by the policy."""
    subscribers: Mapping[str, SubscriberStatus]
