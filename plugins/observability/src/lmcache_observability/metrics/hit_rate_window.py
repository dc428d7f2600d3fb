"""Requested, hit and never seen chunks of late, added up over several spans of time."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

BIN_SECONDS: Final = 10
WINDOWS: Final = {"5m": 300, "1h": 3600}
"""Seconds by name; `start` is the one since the start."""
SINCE_START: Final = "start"
_BINS: Final = max(WINDOWS.values()) // BIN_SECONDS


class HitRates(NamedTuple):
    """`actual` is what was hit of the `requested` chunks, `ceiling` what a cache that forgets nothing would have hit."""

    requested: float
    actual: float
    ceiling: float


class HitRateWindow:
    """A window begins at a multiple of `BIN_SECONDS`, so that it is up to that much shorter than its name says.  Times are
    seconds of a clock that does not go back.  Not thread-safe."""

    def __init__(self) -> None:
        self._bins = np.zeros((_BINS, 3))
        self._total = np.zeros(3)
        self._latest = 0

    @property
    def state_bytes(self) -> int:
        return self._bins.nbytes + self._total.nbytes

    def add(self, at: float, requested: int, hit: int, new: float) -> None:
        """`new` of the requested chunks were not hit and not seen before."""
        self._advance(at)
        added = (requested, hit, new)
        self._bins[self._latest % _BINS] += added
        self._total += added

    def rates(self, now: float) -> dict[str, HitRates]:
        """By the name of the window, those in which anything was requested."""
        self._advance(now)
        found = {}
        for name, seconds in WINDOWS.items():
            count = seconds // BIN_SECONDS
            bins = (self._latest - np.arange(count)) % _BINS
            found[name] = _rates(*self._bins[bins].sum(0).tolist())
        found[SINCE_START] = _rates(*self._total.tolist())
        return {name: rates for name, rates in found.items() if rates.requested}

    def _advance(self, at: float) -> None:
        number = int(at) // BIN_SECONDS
        passed = min(number - self._latest, _BINS)
        if passed > 0:
            self._bins[(number - np.arange(passed)) % _BINS] = 0.0
            self._latest = number


def _rates(requested: float, hit: float, new: float) -> HitRates:
    if not requested:
        return HitRates(0.0, 0.0, 0.0)
    actual = hit / requested
    # what was hit is a hit of any bigger cache, too, however wrong the estimate is
    return HitRates(requested, actual, min(1.0, max(actual, 1.0 - new / requested)))
