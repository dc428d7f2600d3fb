"""How much of a core somebody may use."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

BURST_SECONDS: Final = 0.2
"""What was not used is saved up for so long: a batch that comes after a rest is not interrupted."""


class CpuBudget:
    """Counts the CPU time of the thread that calls `settle`, and says how long it has to rest to stay within `ratio` of a
    core.  Called before and after work, so that a long rest before it counts as one burst.  One thread at a time;
    `begin` when another one takes over."""

    def __init__(
        self,
        ratio: float,
        cpu_seconds: Callable[[], float] = time.thread_time,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ratio, self._cpu_seconds, self._now = ratio, cpu_seconds, now
        self._credit = BURST_SECONDS * ratio
        self.used_seconds = 0.0
        self.begin()

    def begin(self) -> None:
        """This thread is counted from now on."""
        self._cpu_before, self._before = self._cpu_seconds(), self._now()

    def settle(self) -> float:
        """Count what was used since the last time.  Returns the seconds to rest, 0 where there is nothing to make up for."""
        cpu, now = self._cpu_seconds(), self._now()
        used, passed = cpu - self._cpu_before, now - self._before
        self._cpu_before, self._before = cpu, now
        self.used_seconds += used
        self._credit = min(self._credit + passed * self._ratio - used, BURST_SECONDS * self._ratio)
        return max(0.0, -self._credit / self._ratio)
