"""Time that moves only when a test advances it."""

from __future__ import annotations


class FakeClock:
    """A `Clock`.  `advance` moves both of its times."""

    def __init__(self, now: float = 1000.0) -> None:
        self._now = now

    def advance(self, seconds: float) -> None:
        self._now += seconds

    def monotonic(self) -> float:
        return self._now

    def wall_ns(self) -> int:
        return int(self._now * 1e9)
