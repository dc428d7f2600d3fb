"""What the server measures of itself, exactly: counters and gauges that are read where they are kept.

Events can be dropped; readings cannot.  A metrics exporter takes totals from here, and from events only what needs each
of them, such as histograms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Spread(NamedTuple):
    """How many measurements fell where: `counts` has one number for each bucket, which are not cumulated."""

    counts: tuple[int, ...]
    sum: float
    min: float
    max: float


class Reading(NamedTuple):
    """One value of one measure; `labels` are the values of its kind's labels, in their order.  Of a distribution, `value` is
    how many measurements there are, and `spread` how they are spread."""

    name: str
    value: float
    labels: tuple[str, ...] = ()
    spread: Spread | None = None


@dataclass(frozen=True, slots=True)
class ReadingKind:
    """One measure.  `name` and `unit` follow OpenTelemetry's conventions (units by UCUM, such as `By`, `s`, `{chunk}`),
    but where the public server has a measure of the same meaning: then they are its own, prefix `lmcache_mp` included."""

    name: str
    unit: str
    description: str
    counts: bool
    """True: it only grows while the server runs.  False: a gauge."""
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    """Of a distribution: the upper ends of its buckets, which belong to them, without the last one's."""

    def of(self, value: float, *labels: str) -> Reading:
        """A value of this measure, with one label value for each label."""
        assert len(labels) == len(self.labels), f"{self.name} has the labels {self.labels}, not {labels}"
        return Reading(self.name, value, labels)

    def spread_of(self, spread: Spread, *labels: str) -> Reading:
        """The same of a distribution."""
        assert len(spread.counts) == len(self.bounds) + 1, f"{self.name} has {len(self.bounds) + 1} buckets"
        return self.of(sum(spread.counts), *labels)._replace(spread=spread)
