"""What is known of single chunks: their lives, and which of them come again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lmcache_core import Event, LookupFinished, LookupHashes, ObjectsAdded, ObjectsRead, ObjectsRemoved
from lmcache_observability.metrics.ceiling import Ceiling
from lmcache_observability.metrics.chunk_life import ChunkLife
from lmcache_observability.metrics.hash_batch import HashBatch, HashesEvent
from lmcache_observability.metrics.hit_rate_ceiling import HitRateCeiling
from lmcache_observability.metrics.label_names import LabelNames
from lmcache_observability.metrics.metric_kind import Family
from lmcache_observability.metrics.nearest_type import nearest_type
from lmcache_observability.metrics.settings import MetricsSettings


class Chunks:
    """Not thread-safe: the owner holds a lock."""

    def __init__(self, labels: LabelNames, settings: MetricsSettings) -> None:
        self._life = ChunkLife(labels, settings.sample_rate)
        self._ceiling = HitRateCeiling(labels, settings.ceiling_salts_max, settings.ceiling_retention_seconds)
        self._calls: Mapping[type[Event], Callable[[Any], None]] = {
            LookupHashes: self._ceiling.asked,
            LookupFinished: self._ceiling.answered,
            ObjectsAdded: self._ceiling.stored,
            ObjectsRemoved: self._ceiling.passed,
            ObjectsRead: self._ceiling.passed,
        }

    def take(self, events: Sequence[HashesEvent | LookupFinished], now: float) -> None:
        """What happened, in its order.  `now` is of a clock that does not go back."""
        batch = HashBatch([event for event in events if not isinstance(event, LookupFinished)])
        self._life.take(batch)
        self._ceiling.begin(batch)
        for event in events:
            kind = type(event)
            (self._calls.get(kind) or self._calls[nearest_type(kind, self._calls)])(event)
        self._ceiling.end(now)

    def families(self) -> list[Family]:
        return self._life.families()

    def ceilings(self, now: float) -> list[Ceiling]:
        return self._ceiling.ceilings(now)
