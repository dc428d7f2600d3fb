"""How long a backend takes to load a number of bytes, learned from the loads that it has answered."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

_WINDOW: Final = 32
_AGE_WEIGHT: Final = 0.8
"""What a sample counts less than the one after it: four samples outweigh all that was before, so a backend that has become
slower or faster is known as such after a few loads."""
_SPREAD_MIN: Final = 0.1
"""Sizes that differ by less than this share say nothing about what is latency and what is rate."""


class Cost(NamedTuple):
    """`seconds + bytes * seconds_per_byte` is how long a load takes."""

    seconds: float
    seconds_per_byte: float

    def of(self, size: int, rounds: int = 1) -> float:
        return rounds * self.seconds + size * self.seconds_per_byte


class TierSpeed:
    """A line through the last loads: least squares, later ones counting more.  One thread."""

    def __init__(self, samples_min: int) -> None:
        self._samples_min: Final = samples_min
        self._samples: Final[deque[tuple[int, float]]] = deque(maxlen=_WINDOW)
        self._cost: Cost | None = None

    @property
    def cost(self) -> Cost | None:
        """None until there are enough samples."""
        return self._cost

    def took(self, size: int, seconds: float) -> None:
        """These bytes, and those queued before them, arrived after this many seconds."""
        if size > 0 and seconds >= 0:
            self._samples.append((size, seconds))
            if len(self._samples) >= self._samples_min:
                self._cost = self._fit()

    def failed(self, size: int, seconds: float) -> None:
        """Nothing was loaded in that time.  A quick miss is not a sign of speed."""
        if self._cost is None or seconds > self._cost.of(size):
            self.took(size, seconds)

    def _fit(self) -> Cost:
        last = len(self._samples) - 1
        weights = [_AGE_WEIGHT ** (last - at) for at in range(last + 1)]
        total = sum(weights)
        size = sum([weight * x for weight, (x, _) in zip(weights, self._samples, strict=True)]) / total
        seconds = sum([weight * t for weight, (_, t) in zip(weights, self._samples, strict=True)]) / total
        spread = sum([weight * (x - size) ** 2 for weight, (x, _) in zip(weights, self._samples, strict=True)]) / total
        if spread < (_SPREAD_MIN * size) ** 2:
            return Cost(0.0, seconds / size)
        together = sum(
            [weight * (x - size) * (t - seconds) for weight, (x, t) in zip(weights, self._samples, strict=True)]
        )
        slope = together / total / spread
        if slope <= 0:  # larger loads were not slower; how much larger ones are, is not known beyond the largest seen
            slope = seconds / max(x for x, _ in self._samples)
            return Cost(max(0.0, seconds - slope * size), slope)
        fixed = seconds - slope * size
        return Cost(fixed, slope) if fixed >= 0 else Cost(0.0, seconds / size)
