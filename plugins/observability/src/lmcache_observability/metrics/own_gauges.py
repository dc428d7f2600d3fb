"""Metrics that are neither samples nor distributions: hit rates, and pushes to a collector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from lmcache_observability.metrics.ceiling import Ceiling
from lmcache_observability.metrics.metric_kind import Family, MetricKind, MetricType

_LABELS: Final = ("window", "cache_salt")
CEILING: Final = MetricKind(
    "lmcache.hit_rate.ceiling",
    "1",
    "Share of the requested chunks that a cache which forgets nothing would have hit; `_all` are all salts",
    MetricType.GAUGE,
    _LABELS,
)
ACTUAL: Final = MetricKind(
    "lmcache.hit_rate.actual", "1", "Share of the same chunks that were hit", MetricType.GAUGE, _LABELS
)
PUSHES: Final = MetricKind(
    "lmcache.otlp.pushes",
    "{push}",
    "Pushes of metrics to the collector, by result: ok or failed; only with --otlp-endpoint",
    MetricType.COUNTER,
    ("result",),
)
KINDS: Final = (CEILING, ACTUAL, PUSHES)


def hit_rate_families(ceilings: Sequence[Ceiling]) -> list[Family]:
    return [
        Family(CEILING, [((each.window, each.cache_salt), each.ceiling) for each in ceilings]),
        Family(ACTUAL, [((each.window, each.cache_salt), each.actual) for each in ceilings]),
    ]


def push_family(pushes: Mapping[str, int]) -> Family:
    return Family(PUSHES, [((result,), count) for result, count in pushes.items()])
