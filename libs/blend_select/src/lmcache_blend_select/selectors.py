"""The selectors of this distribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lmcache_blend_select.contract import Facts, Need, Run, Selector, runs_of

LEGO_LINK_TOKENS: Final = 16


def _none(facts: Facts) -> Sequence[Run]:
    return ()


def _full(facts: Facts) -> Sequence[Run]:
    return runs_of(facts.positions()[: facts.budget])


def _lego_link(facts: Facts) -> Sequence[Run]:
    return _first_tokens(facts, LEGO_LINK_TOKENS)


def _block_start(facts: Facts) -> Sequence[Run]:
    return _first_tokens(facts, facts.block_tokens)


def _first_tokens(facts: Facts, most: int) -> Sequence[Run]:
    """The first tokens of each segment, `most` of each or as many as the budget has for all alike; the rest goes to the first
    segments, one token for each."""
    lengths = np.array([segment.end - segment.start for segment in facts.segments], np.int64)
    kept = np.minimum(lengths, most)
    if kept.sum() > facts.budget:
        even = next(count for count in range(most, -1, -1) if np.minimum(lengths, count).sum() <= facts.budget)
        kept = np.minimum(lengths, even)
        longer = np.flatnonzero(lengths > even)[: facts.budget - int(kept.sum())]
        kept[longer] += 1
    return [
        Run(segment.start, segment.start + int(count))
        for segment, count in zip(facts.segments, kept, strict=True)
        if count
    ]


def _cacheblend(facts: Facts) -> Sequence[Run]:
    layers, deviation = _last_measured(facts)
    return _largest(facts, layers, deviation)


def _question(facts: Facts) -> Sequence[Run]:
    layers, deviation = _last_measured(facts)
    assert facts.attention is not None
    return _largest(facts, layers, deviation * np.nan_to_num(facts.attention.astype(np.float64)))


def _last_measured(facts: Facts) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Of each token the last check layer that computed it, -1 for none, and its deviation there."""
    assert facts.deviation is not None
    layers = np.where(np.isnan(facts.deviation), -1, np.arange(len(facts.deviation))[:, None]).max(axis=0)
    found = np.take_along_axis(facts.deviation, np.maximum(layers, 0)[None], axis=0)[0]
    return layers, np.where(layers < 0, 0.0, found).astype(np.float64)


def _largest(facts: Facts, layers: NDArray[np.int64], scores: NDArray[np.float64]) -> Sequence[Run]:
    """Tokens that the later layers computed come first; of them those with the largest scores; of equal ones the first."""
    best = np.lexsort((np.arange(facts.tokens), -scores, -layers))[: facts.budget]
    return runs_of(facts.positions()[np.sort(best)])


NONE: Final = Selector(_none, ratio=0.0)
FULL: Final = Selector(_full, ratio=1.0)
LEGO_LINK: Final = Selector(_lego_link)
"""The first 16 tokens of each segment: they have attended to nothing (EPIC)."""
BLOCK_START: Final = Selector(_block_start)
"""The first block of each segment (MEPIC)."""
CACHEBLEND: Final = Selector(_cacheblend, frozenset({Need.DEVIATION}))
"""The tokens whose K deviates most (CacheBlend)."""
QUESTION: Final = Selector(_question, frozenset({Need.DEVIATION, Need.ATTENTION}))
"""The tokens whose deviation, by the attention that the question pays to them, is largest (after ProphetKV)."""
