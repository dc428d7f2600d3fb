"""A link of a given speed, for backends that are made up."""

from __future__ import annotations

import threading
import time


class SimulatedLink:
    """Transfers pass one after the other, in whichever direction.  Any thread; sleeps, and never spins."""

    def __init__(self, bytes_per_second: float) -> None:
        self._bytes_per_second = bytes_per_second
        self._changed = threading.Condition()
        # Guarded by _changed, in seconds of time.monotonic().
        self._free_at = 0.0
        self._cut_at: float | None = None

    def book(self, size: int, since: float) -> float:
        """When `size` bytes that were handed over at `since` have passed, behind all that were booked before them.  Both
        in seconds of time.monotonic()."""
        with self._changed:
            self._free_at = max(self._free_at, since) + size / self._bytes_per_second
            return self._free_at

    def wait_until(self, passed_at: float) -> bool:
        """Block until then.  False where the link is cut before."""
        with self._changed:
            while (now := time.monotonic()) < passed_at:
                if self._cut_at is not None and self._cut_at <= now:
                    return False
                end = passed_at if self._cut_at is None else min(passed_at, self._cut_at)
                self._changed.wait(end - now)
            return True

    def cut(self, in_seconds: float) -> None:
        """What has not passed by then never does.  Calling it again does nothing."""
        with self._changed:
            if self._cut_at is None:
                self._cut_at = time.monotonic() + in_seconds
                self._changed.notify_all()
