"""How much counters have grown lately."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Final

from lmcache_core.contracts.clock import Clock

WINDOW_SECONDS: Final = 60.0
_SAMPLE_SECONDS: Final = 1.0


class RecentGrowth:
    """Of counters that only grow, what came within the last `seconds`, to within a second.  A counter that is met for the
    first time has grown from 0.  Not safe from several threads at once."""

    def __init__(self, clock: Clock, seconds: float = WINDOW_SECONDS) -> None:
        self._clock = clock
        self._seconds = seconds
        self._samples: dict[Hashable, deque[tuple[float, float]]] = {}
        """Time and value, the oldest first; one of them may be older than the window."""

    def of(self, counter: Hashable, value: float) -> float:
        """To be asked again and again, at least once per second, with the counter's value of now."""
        now = self._clock.monotonic()
        samples = self._samples.setdefault(counter, deque([(now, 0.0)]))
        if now - samples[-1][0] >= _SAMPLE_SECONDS:
            samples.append((now, value))
        while len(samples) > 1 and samples[1][0] <= now - self._seconds:
            samples.popleft()
        return max(0.0, value - samples[0][1])

    def keep(self, counters: set[Hashable]) -> None:
        """Forget all others."""
        self._samples = {counter: samples for counter, samples in self._samples.items() if counter in counters}
