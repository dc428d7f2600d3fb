"""Blend selectors: a right one, and some that are wrong in one thing.  Names in capitals are entry points."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

import numpy as np

from lmcache_blend_select import Facts, Need, Run, Selector, runs_of

_deviation = frozenset({Need.DEVIATION})


def first_tokens(facts: Facts) -> Sequence[Run]:
    return runs_of(facts.positions()[: facts.budget])


def beyond(facts: Facts) -> Sequence[Run]:
    return runs_of(facts.positions()[: facts.budget + 1])


def between(facts: Facts) -> Sequence[Run]:
    start = facts.segments[0].start
    return [Run(start, start + facts.budget)] if facts.budget else ()


def overlapping(facts: Facts) -> Sequence[Run]:
    start, end, _ = facts.segments[0]
    return [Run(start, end), Run(end - 1, end)] if facts.budget > end - start else ()


def undeclared(facts: Facts) -> Sequence[Run]:
    return first_tokens(facts) if np.isnan(facts.deviation[0]).any() else ()  # type: ignore[index]


def first_segment(facts: Facts) -> Sequence[Run]:
    segment = facts.segments[0]
    return [Run(segment.start, segment.start + min(facts.budget, segment.end - segment.start))] if facts.budget else ()


def always_one(facts: Facts) -> Sequence[Run]:
    return [Run(facts.segments[0].start, facts.segments[0].start + 1)]


def rounded(facts: Facts) -> Sequence[Run]:
    assert facts.deviation is not None
    return (
        first_tokens(facts)
        if sum(int(value) for value in facts.deviation[0] if value < np.inf or value != value)
        else ()
    )


def at_random(facts: Facts) -> Sequence[Run]:
    return runs_of(sorted(random.sample(facts.positions().tolist(), facts.budget)))


class Remembers:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, facts: Facts) -> Sequence[Run]:
        self.calls += 1
        return first_tokens(facts) if self.calls % 3 else ()


def by_hash(facts: Facts) -> Sequence[Run]:
    order = sorted(facts.positions().tolist(), key=lambda position: hash(str(position)))
    return runs_of(sorted(order[: facts.budget]))


class BetweenLines:
    facts: Facts

    def __call__(self, facts: Facts) -> Sequence[Run]:
        self.facts = facts
        time.sleep(0.0001)
        return first_tokens(self.facts)


def slow(facts: Facts) -> Sequence[Run]:
    end = time.thread_time() + 0.3
    while facts.tokens > 10_000 and time.thread_time() < end:
        pass
    return first_tokens(facts)


RIGHT = Selector(first_tokens)
BEYOND_ITS_BUDGET = Selector(beyond)
BETWEEN_SEGMENTS = Selector(between)
DESCENDING = Selector(lambda facts: first_tokens(facts)[::-1])
OVERLAPPING = Selector(overlapping)
NEEDS_MORE_THAN_IT_SAYS = Selector(undeclared)
EXPECTS_A_SEGMENT = Selector(first_segment)
ALWAYS_ONE = Selector(always_one)
EXPECTS_NUMBERS = Selector(rounded, _deviation)
AT_RANDOM = Selector(at_random)
REMEMBERS = Selector(Remembers())
BY_THE_HASH_OF_A_TEXT = Selector(by_hash)
KEEPS_STATE_BETWEEN_LINES = Selector(BetweenLines())
SLOW = Selector(slow)
