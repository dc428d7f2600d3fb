"""A running server, as the rows see it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Final

from benchmarks.cpu_clock import CpuMeter
from benchmarks.peer import Peer

SHARES: Final = 5
Figures = dict[str, float]
"""Values by the names of `figures.CATALOGUE`."""


@dataclass(frozen=True, slots=True)
class Site:
    peer: Peer
    port: int
    pid: int
    checks: bool
    """False for the echo, which finds and stores nothing."""
    scale: float = 1.0
    """Share of the usual number of operations and seconds; tests take little."""
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def number(self) -> int:
        """A number that no row has had: for request ids and seeds."""
        return next(self._numbers)

    def times(self, count: int) -> int:
        return max(2, round(count * self.scale))

    def seconds(self, seconds: float) -> float:
        return seconds * self.scale

    def server_cpu(self) -> CpuMeter:
        return CpuMeter(self.pid)

    def latencies(self, ask: Callable[[], float], seconds: float) -> list[float]:
        """What `ask` returns, again and again for so long, smallest first."""
        taken, end = [ask()], time.monotonic() + self.seconds(seconds)
        while time.monotonic() < end:
            taken.append(ask())
        return sorted(taken)


def steady(values: list[float]) -> float:
    """The median of the means of up to five shares: work that comes every few operations counts, and one hiccup of the
    machine does not."""
    shares = [values[begin::SHARES] for begin in range(min(SHARES, len(values)))]
    return median(map(fmean, shares))


def quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
