"""Traces to point at from a distribution that the server counts itself."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from lmcache_observability.metrics.metric_kind import Exemplar, LabelValues

SERIES_MAX = 2048
"""Combinations of labels of which there are exemplars."""


class Exemplars:
    """The latest measurement with a trace between two bounds.  Not thread-safe: the owner holds a lock."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._found: dict[LabelValues, dict[int, Exemplar]] = {}

    def add(self, labels: LabelValues, exemplar: Exemplar) -> None:
        if labels in self._found or len(self._found) < SERIES_MAX:
            self._found.setdefault(labels, {})[bisect_left(self._bounds, exemplar.value)] = exemplar

    def by_labels(self) -> Mapping[LabelValues, Sequence[Exemplar]]:
        return {labels: list(found.values()) for labels, found in self._found.items()}
