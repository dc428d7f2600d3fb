"""The server's samples as metrics: exact totals, whatever became of the events."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from operator import add
from typing import Final

from lmcache_core import Sample, SampleKind
from lmcache_observability.metrics.label_names import LabelNames
from lmcache_observability.metrics.metric_kind import (
    Distribution,
    Exemplar,
    Family,
    LabelValues,
    MetricKind,
    MetricType,
)

_LARGEST: Final = ("1", "s")
"""Units of gauges (shares, ages) that make no sense added up: of several values the largest is shown."""

ExemplarsOf = Mapping[LabelValues, Sequence[Exemplar]]
_NO_EXEMPLARS: Final[Mapping[str, ExemplarsOf]] = {}


class SampleFamilies:
    """Any thread."""

    def __init__(self, kinds: Sequence[SampleKind], labels: LabelNames) -> None:
        self._labels = labels
        self._kinds = {kind.name: metric_kind(kind) for kind in kinds}

    def of(self, samples: Sequence[Sample], exemplars: Mapping[str, ExemplarsOf] = _NO_EXEMPLARS) -> list[Family]:
        """One family for each measure, with exemplars by its name.  Values whose labels are shown alike are added up."""
        values: dict[str, dict[LabelValues, float]] = {name: {} for name in self._kinds}
        histograms: dict[str, dict[LabelValues, Distribution]] = {name: {} for name in self._kinds}
        for name, value, given, histogram in samples:
            kind = self._kinds[name]
            shown = tuple(map(self._labels.show, kind.labels, given))
            if histogram is not None:
                of_distribution = histograms[name]
                pointers = exemplars.get(name, {}).get(shown, ())
                more = Distribution(*histogram, {bisect_left(kind.bounds, each.value): each for each in pointers})
                earlier = of_distribution.get(shown)
                of_distribution[shown] = _sum(earlier, more) if earlier else more
                continue
            of_kind = values[name]
            before = of_kind.get(shown)
            if before is not None:
                value = max(before, value) if _keeps_largest(kind) else before + value
            of_kind[shown] = value
        return [
            Family(kind, list(values[name].items()), list(histograms[name].items()))
            for name, kind in self._kinds.items()
        ]


def metric_kind(kind: SampleKind) -> MetricKind:
    type_ = MetricType.HISTOGRAM if kind.bounds else MetricType.COUNTER if kind.is_counter else MetricType.GAUGE
    return MetricKind(kind.name, kind.unit, kind.description, type_, tuple(kind.labels), tuple(kind.bounds))


def _sum(one: Distribution, other: Distribution) -> Distribution:
    counts = tuple(map(add, one.counts, other.counts))
    return Distribution(counts, one.sum + other.sum, min(one.min, other.min), max(one.max, other.max), one.exemplars)


def _keeps_largest(kind: MetricKind) -> bool:
    return kind.type is MetricType.GAUGE and kind.unit in _LARGEST
