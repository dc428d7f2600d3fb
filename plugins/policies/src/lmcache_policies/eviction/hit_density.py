"""Hits to be expected for a slot and second, by age, from how the use of many objects ended.

Beckmann, Chen, Cidon: LHD, improving cache hit rate by maximizing hit density (NSDI 2018),
https://www.usenix.org/conference/nsdi18/presentation/beckmann
Gittins: Bandit processes and dynamic allocation indices (Journal of the Royal Statistical Society B 41(2), 1979),
https://doi.org/10.1111/j.2517-6161.1979.tb01068.x

LHD divides the hits to come by the time until the object is hit or evicted, as its own evictions made it.  Here the
time is chosen: an object may be evicted at the age at which that quotient is best, which is the Gittins index, and so
the density does not depend on what was evicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import frexp, sqrt
from typing import Final

BUCKETS: Final = 64
"""Ages are counted in half octaves, from 2**-7 s to 2**24 s."""
_LOWEST: Final = -14
_HALF_OCTAVE: Final = sqrt(0.5)
_START: Final = (0.0, *(2.0 ** ((b + _LOWEST - 2) / 2) for b in range(1, BUCKETS)))
_WIDTH: Final = (*(end - start for start, end in pairwise(_START)), _START[-1])
_PRIOR_HITS: Final = 3.0
"""Each kind is taken to have been seen this often with the ages of all kinds together."""

Table = Sequence[float]
"""One number for each bucket of age."""


def age_bucket(age: float) -> int:
    """Any number is an age; those that are not numbers are the youngest."""
    if not age > 0.0:
        return 0
    mantissa, exponent = frexp(age)
    bucket = 2 * exponent + (mantissa > _HALF_OCTAVE) - _LOWEST
    return 0 if bucket < 0 else bucket if bucket < BUCKETS else BUCKETS - 1


def hit_densities(reused: Sequence[Table], ended: Sequence[Table], finest: int) -> tuple[Table, ...]:
    """The density of each kind by age.  `reused` counts ages at which objects of a kind were asked for again, `ended`
    those at which they were lost sight of; ages below bucket `finest` are one.

    Kinds come in the order in which they end a prompt, and a later one is never less dense than an earlier one of the
    same age: who asks for the end of a prompt asks for its beginning."""
    kinds = [_exposure(hits, gone, finest) for hits, gone in zip(reused, ended, strict=True)]
    all_hits = [sum(column) for column in zip(*(hits for hits, _ in kinds), strict=True)]
    all_spent = [sum(column) for column in zip(*(spent for _, spent in kinds), strict=True)]
    share = _PRIOR_HITS / max(1.0, sum(all_hits))
    tables: list[Table] = []
    for hits, spent in kinds:
        own = _gittins(_plus(hits, all_hits, share), _plus(spent, all_spent, share))
        tables.append([max(pair) for pair in zip(own, tables[-1], strict=True)] if tables else own)
    return tuple(tables)


def _plus(own: Table, everything: Table, share: float) -> list[float]:
    return [a + share * b for a, b in zip(own, everything, strict=True)]


def _exposure(hits: Table, gone: Table, finest: int) -> tuple[Table, Table]:
    """Hits, and slot-seconds spent, in each bucket of age."""
    hits = [0.0] * finest + [sum(hits[: finest + 1]), *hits[finest + 1 :]]
    gone = [0.0] * finest + [sum(gone[: finest + 1]), *gone[finest + 1 :]]
    spent, beyond = [0.0] * BUCKETS, 0.0
    for b in range(BUCKETS - 1, finest - 1, -1):
        ending = hits[b] + gone[b]
        width = _WIDTH[b] if b > finest else _START[b] + _WIDTH[b]
        spent[b] = width * (beyond + ending / 2)
        beyond += ending
    return hits, spent


def _gittins(hits: Table, spent: Table) -> list[float]:
    """The steepest average from each bucket on: the first slope of the concave hull of all that lies beyond it."""
    index = [0.0] * BUCKETS
    hull: list[tuple[float, float]] = []
    for b in range(BUCKETS - 1, -1, -1):
        h, x = hits[b], spent[b]
        while hull and (x <= 0.0 or hull[-1][0] * x > h * hull[-1][1]):
            more_h, more_x = hull.pop()
            h, x = h + more_h, x + more_x
        hull.append((h, x))
        index[b] = h / x if x > 0.0 else 0.0
    return index
