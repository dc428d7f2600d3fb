"""Whether stores are taken.  A freeze refuses them for a while, and lookups see L1 only; the end of the server is for good."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator

from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.conditions import Condition, Severity
from lmcache_core.storage.counters import FROZEN, STOPPING


class Freeze:
    """Implements `contracts.server_control.FreezeControl`.  Safe from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._until: dict[str, float] = {}
        """By holder."""
        self.refuses = ""
        """Why stores are refused; empty: they are taken.  A freeze whose time is over is ended by the next `lasts`."""

    def begin(self, seconds: float | None, holder: str = "") -> None:
        with self._lock:
            self._until[holder] = math.inf if seconds is None else self._clock.monotonic() + seconds
            self.refuses = self.refuses or FROZEN

    def end(self, holder: str = "") -> None:
        with self._lock:
            self._until.pop(holder, None)
            self._left()

    def stop(self) -> None:
        """Stores are refused for good."""
        with self._lock:
            self.refuses = STOPPING

    def lasts(self) -> bool:
        """Are stores refused now?"""
        with self._lock:
            self._left()
            return bool(self.refuses)

    def _left(self) -> float:
        """Seconds.  Where there are none, the freeze ends."""
        left = max(self._until.values(), default=0.0) - self._clock.monotonic()
        if left <= 0 and self.refuses == FROZEN:
            self._until, self.refuses = {}, ""
        return left

    def conditions(self) -> Iterator[Condition]:
        with self._lock:
            left = self._left()
        if self.refuses == FROZEN:
            until = "until that is undone" if left == math.inf else f"for {left:.0f} s more"
            yield Condition(
                "frozen",
                Severity.INFO,
                f"stores are refused, and lookups see L1 only, {until}",
                "wait; it ends by itself, unless a plugin of this server undoes it",
                "server",
            )
