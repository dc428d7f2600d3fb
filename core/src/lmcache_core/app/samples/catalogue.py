"""All samples of a running server, as one list.

Each part is read once, under its own lock, so that the values of one part fit together; those of two parts can be a
moment apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from lmcache_core.app.samples import l1, l2, server, tenants
from lmcache_core.app.samples.l1 import l1_samples
from lmcache_core.app.samples.l2 import adapter_samples, prefetch_samples, serde_samples, store_samples
from lmcache_core.app.samples.server import server_samples
from lmcache_core.app.samples.tenants import tenant_samples
from lmcache_core.contracts.conditions import ActiveCondition
from lmcache_core.contracts.samples import Sample, SampleKind

if TYPE_CHECKING:
    from lmcache_core.app.parts import Parts

SAMPLE_KINDS: Final[tuple[SampleKind, ...]] = (*tenants.KINDS, *l1.KINDS, *l2.KINDS, *server.KINDS)
"""Every metric that `samples` can have values of."""


def samples(parts: Parts, uptime_seconds: float, conditions: Sequence[ActiveCondition]) -> list[Sample]:
    """All values, of this moment.  Any thread; takes 1.5 us for each of them."""
    tiers = parts.tiers
    evictions = [(each.adapter, each.eviction.counts) for each in tiers.l2.evictions]
    return [
        *tenant_samples(tiers.storage.counters.snapshot()),
        *l1_samples(parts),
        *store_samples(tiers.store.views(), tiers.store.backlog.size_bytes, tiers.store.backlog.refused),
        *prefetch_samples(tiers.prefetch.counts()),
        *adapter_samples(tiers.l2.clients, evictions, conditions),
        *serde_samples(tiers.l2.clients),
        *server_samples(parts, uptime_seconds, conditions),
        *parts.services.samples(),
    ]
