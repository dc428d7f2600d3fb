"""Metrics about the lives of chunks."""

from __future__ import annotations

from typing import Final

from lmcache_observability.metrics.label_names import CACHE_SALT
from lmcache_observability.metrics.metric_kind import MetricKind, MetricType

LIFE_SECONDS: Final = (
    1.0,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
    1800.0,
    3600.0,
    7200.0,
    14400.0,
    43200.0,
    86400.0,
)
_MANY: Final = (10.0, 100.0, 1e3, 3e3, 1e4, 3e4, 1e5, 3e5, 1e6, 1e7)


def _life(name: str, description: str, *labels: str) -> MetricKind:
    return MetricKind(name, "s", description, MetricType.HISTOGRAM, labels, LIFE_SECONDS)


LIFETIME: Final = _life("lmcache_mp.l1_chunk_lifetime", "How long a chunk was in L1 before it was evicted")
IDLE: Final = _life("lmcache_mp.l1_chunk_idle_before_evict", "How long an evicted chunk had not been read or stored")
REUSE_GAP: Final = _life("lmcache_mp.l1_chunk_reuse_gap", "Time between two uses of a chunk in L1")
EVICT_REUSE_GAP: Final = _life(
    "lmcache_mp.l1_chunk_evict_reuse_gap", "How long after its eviction a chunk came back into L1"
)
REAL_REUSE_GAP: Final = _life(
    "lmcache_mp.real_reuse_gap",
    "Time between two lookups that ask for a chunk, whether it is still cached or not",
    CACHE_SALT,
)
REAL_REUSE_GAP_OBJECTS: Final = MetricKind(
    "lmcache_mp.real_reuse_gap_objects",
    "{chunks}",
    "Objects that came into L1 between two lookups that ask for a chunk, estimated from the sample",
    MetricType.HISTOGRAM,
    (CACHE_SALT,),
    _MANY,
)
KINDS: Final = (LIFETIME, IDLE, REUSE_GAP, EVICT_REUSE_GAP, REAL_REUSE_GAP, REAL_REUSE_GAP_OBJECTS)
