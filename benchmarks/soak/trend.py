"""Whether a series grows: a slope with its confidence."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt
from statistics import fmean
from typing import Final, Literal, NamedTuple

BLOCKS: Final = 12
T_95: Final = {2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228}
"""Student's t, two-sided 95 %, by degrees of freedom."""

Verdict = Literal["flat", "undecided", "grows"]


class Trend(NamedTuple):
    """Units of y per unit of x, and the interval that holds the slope with 95 % confidence."""

    slope: float
    low: float
    high: float

    def verdict(self, tolerance: float) -> Verdict:
        """Does it stay below `tolerance`, for sure; is it above it, for sure; or can this series not tell?"""
        if self.high <= tolerance:
            return "flat"
        return "grows" if self.low > tolerance else "undecided"


def trend(xs: Sequence[float], ys: Sequence[float]) -> Trend | None:
    """Least squares over the means of equal blocks: samples that follow each other are alike, and taking them for
    independent ones would make the interval far too narrow.  None for fewer than four blocks of two samples."""
    blocks = min(BLOCKS, len(xs) // 2)
    if blocks < 4:
        return None
    edges = [len(xs) * number // blocks for number in range(blocks + 1)]
    x = [fmean(xs[begin:end]) for begin, end in pairwise(edges)]
    y = [fmean(ys[begin:end]) for begin, end in pairwise(edges)]
    x_mean, y_mean = fmean(x), fmean(y)
    spread = sum((value - x_mean) ** 2 for value in x)
    if not spread:
        return None
    slope = sum((a - x_mean) * (b - y_mean) for a, b in zip(x, y, strict=True)) / spread
    left = sum((b - y_mean - slope * (a - x_mean)) ** 2 for a, b in zip(x, y, strict=True))
    margin = T_95[blocks - 2] * sqrt(left / (blocks - 2) / spread)
    return Trend(slope, slope - margin, slope + margin)
