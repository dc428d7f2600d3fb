"""Time, as a thing one is handed, so that tests can turn it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds that never go back.  Every deadline uses it."""

    def wall_ns(self) -> int:
        """Nanoseconds since the epoch.  For headers and logs only."""


class SystemClock:
    """The machine's clock."""

    monotonic = staticmethod(time.monotonic)
    wall_ns = staticmethod(time.time_ns)
