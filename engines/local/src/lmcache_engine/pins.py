"""Lookups that hold what they found until they are undone."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)


class Pins:
    """Says which pins were not undone within their time; the storage itself ends them.  Any thread."""

    def __init__(
        self, timeout_seconds: float, interval_seconds: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._timeout, self._interval, self._now = timeout_seconds, interval_seconds, now
        self._lock = threading.Lock()
        self._ends: dict[str, float] = {}
        """By lookup id, the first to end first."""
        self._looked = now()
        self._late = 0

    def add(self, lookup_id: str) -> None:
        """The time of a pin that exists starts again."""
        with self._lock:
            self._ends.pop(lookup_id, None)
            self._ends[lookup_id] = self._now() + self._timeout

    def end(self, lookup_id: str) -> None:
        with self._lock:
            self._ends.pop(lookup_id, None)

    def warn_late(self) -> None:
        """Count and log those whose time is over, not more often than the interval says."""
        with self._lock:
            now = self._now()
            if now - self._looked < self._interval:
                return
            self._looked, late = now, [name for name, end in self._ends.items() if end <= now]
            for name in late:
                del self._ends[name]
            self._late += len(late)
        if late:
            logger.warning(
                "pins ended by themselves count=%d lookup_id=%s; call lookup_unpin, or raise pin_timeout_sec (%g s)",
                len(late), late[0], self._timeout,
            )  # fmt: skip

    def status(self) -> dict[str, int]:
        with self._lock:
            return {"open": len(self._ends), "timed_out": self._late}
