"""Everything that a running server measures of itself, as one list of values.

Each part is read once, under its own lock, so that the values of one part fit together; those of two parts can be a
moment apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from lmcache_core.app.samples import adapters, events, l1, prefetch, serdes, server, stores, tenants
from lmcache_core.app.samples.adapters import adapter_samples
from lmcache_core.app.samples.events import event_samples
from lmcache_core.app.samples.l1 import l1_samples
from lmcache_core.app.samples.prefetch import prefetch_samples
from lmcache_core.app.samples.serdes import serde_samples
from lmcache_core.app.samples.server import server_samples
from lmcache_core.app.samples.stores import store_samples
from lmcache_core.app.samples.tenants import tenant_samples
from lmcache_core.contracts.conditions import ActiveCondition
from lmcache_core.contracts.samples import Sample, SampleKind

if TYPE_CHECKING:
    from lmcache_core.app.parts import Parts

SAMPLE_KINDS: Final[tuple[SampleKind, ...]] = (
    *tenants.KINDS,
    *l1.KINDS,
    *stores.KINDS,
    *prefetch.KINDS,
    *adapters.KINDS,
    *serdes.KINDS,
    *server.KINDS,
    *events.KINDS,
)
"""Every measure that `samples` can have values of."""


def samples(parts: Parts, uptime_seconds: float, conditions: Sequence[ActiveCondition]) -> list[Sample]:
    """All values, of this moment.  Any thread; takes 1.5 us for each of them."""
    return [
        *tenant_samples(parts.tiers.storage.tallies.snapshot()),
        *l1_samples(parts),
        *store_samples(parts),
        *prefetch_samples(parts),
        *adapter_samples(parts, conditions),
        *serde_samples(parts),
        *server_samples(parts, uptime_seconds, conditions),
        *event_samples(parts.bus.counters()),
    ]
