"""Samples of one cell as the few figures that people compare."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

from lmcache_tools.bench.comparison import Score
from lmcache_tools.bench.traffic import Sample


class Spread(NamedTuple):
    """Of one figure over the rounds."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of one value at least."""
        return cls(median(values), min(values), max(values))


class Figures(NamedTuple):
    """Of one lane in one cell.  Percentiles are over the steps of all rounds."""

    bytes_per_second: Spread
    cpu_seconds_per_gb: float
    latency_p50_seconds: float
    latency_p99_seconds: float
    device_read_ratio: float | None
    """Bytes that storage delivered for each byte that was moved; None where the kernel does not say."""
    samples: tuple[Sample, ...]

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> Figures:
        """Of one sample at least."""
        latencies = sorted(latency for sample in samples for latency in sample.latencies)
        read = [sample.device_read_bytes for sample in samples if sample.device_read_bytes is not None]
        moved = sum(sample.moved_bytes for sample in samples)
        return cls(
            Spread.of([sample.bytes_per_second for sample in samples]),
            median(sample.cpu_seconds_per_gb for sample in samples),
            percentile(latencies, 50),
            percentile(latencies, 99),
            sum(read) / moved if len(read) == len(samples) else None,
            tuple(samples),
        )

    def record(self) -> dict[str, Any]:
        """Everything, as JSON can say it."""
        return {
            "bytes_per_second": self.bytes_per_second._asdict(),
            "cpu_seconds_per_gb": self.cpu_seconds_per_gb,
            "latency_p50_seconds": self.latency_p50_seconds,
            "latency_p99_seconds": self.latency_p99_seconds,
            "device_read_ratio": self.device_read_ratio,
            "rounds": [
                {"bytes": sample.moved_bytes, "seconds": sample.seconds, "cpu_seconds": sample.cpu_seconds}
                for sample in self.samples
            ],
        }


def ratios(score: Score) -> Spread | None:
    """The adapter's speed as a part of its medium's, pair by pair; None without a pair."""
    pairs = [
        own.bytes_per_second / medium.bytes_per_second for own, medium in zip(score.own, score.medium, strict=False)
    ]
    return Spread.of(pairs) if pairs else None


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The smallest value of `ordered` that `percent` percent of them do not exceed."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
