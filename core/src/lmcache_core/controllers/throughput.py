"""How fast a backend takes what it is given."""

from __future__ import annotations

from typing import Final

HALF_LIFE_SECONDS: Final = 10.0


class Throughput:
    """Bytes per second over the time in which the backend had as much to do as it is ever given at once.

    What it did while it had less says nothing about how fast it is, so that time does not count.  Older time counts
    for less, by half per half-life, and a backend that has stopped becomes slower as one looks.  One thread."""

    def __init__(self, evidence_bytes: int, half_life_seconds: float = HALF_LIFE_SECONDS) -> None:
        """Nothing is said before so many bytes have passed."""
        self._evidence = evidence_bytes
        self._half_life = half_life_seconds
        self._passed = 0
        self._bytes = 0.0
        self._seconds = 0.0
        self._busy_since: float | None = None

    def advance(self, now: float, saturated: bool) -> None:
        """Account for the time since the last call; `saturated` is how it goes on."""
        if self._busy_since is not None:
            self._bytes, self._seconds = self._aged(now - self._busy_since)
        self._busy_since = now if saturated else None

    def done(self, size: int) -> None:
        """So many bytes were taken."""
        if self._busy_since is not None:
            self._passed += size
            self._bytes += size

    def bytes_per_second(self, now: float) -> float | None:
        """None until it is known."""
        if self._passed < self._evidence:
            return None
        taken, seconds = (
            self._aged(now - self._busy_since) if self._busy_since is not None else (self._bytes, self._seconds)
        )
        return taken / seconds if seconds > 0 else None

    def _aged(self, elapsed: float) -> tuple[float, float]:
        weight = 0.5 ** (elapsed / self._half_life)
        return self._bytes * weight, self._seconds * weight + elapsed
