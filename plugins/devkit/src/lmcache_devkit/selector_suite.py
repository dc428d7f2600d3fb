"""The requirements of a blend selector, as tests.  A distribution runs them with two lines:

class TestMine(SelectorSuite):
    selector = "mine"

It needs `lmcache-devkit[blend]`.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

import numpy as np
import pytest
from numpy.typing import NDArray

from lmcache_blend_select import Facts, Need, Segment, Selector, budget, select, selector

CASES: Final = 200
LONG_TOKENS: Final = 32_768
SECONDS_MAX: Final = 0.25
"""Of a processor, for a prompt of `LONG_TOKENS` tokens: an engine's step waits for it."""
IN_ANOTHER_PROCESS: Final = """
import json, sys
from lmcache_devkit.selector_suite import choices
print(json.dumps(choices(sys.argv[1])))
"""


class SelectorSuite:
    """Set `selector` to the name of an entry point in the group `lmcache.blend_selectors.v1`."""

    kind = "blend selector"
    selector: str

    @pytest.fixture
    def chosen(self) -> Selector:
        return selector(self.selector)

    def test_runs_ascend_within_segments_and_budget(self, chosen: Selector) -> None:
        """Segments anywhere in the prompt, of one token and more, budgets from nothing to everything."""
        for facts in cases(chosen):
            select(chosen, facts)

    def test_where_nothing_is_reused_nothing_is_chosen(self, chosen: Selector) -> None:
        assert select(chosen, _with_needs(Facts((), 0, 16), chosen, np.random.default_rng(0))) == ()

    def test_without_a_budget_nothing_is_chosen(self, chosen: Selector) -> None:
        for facts in cases(chosen):
            assert select(chosen, replace(facts, budget=0)) == ()

    def test_any_deviation_and_attention_will_do(self, chosen: Selector) -> None:
        """All alike, infinite, none of a layer, none at all."""
        for facts in cases(chosen):
            for value in (0.0, 1.0, np.inf, np.nan):
                deviation = None if facts.deviation is None else np.full_like(facts.deviation, value)
                attention = None if facts.attention is None else np.full_like(facts.attention, value)
                select(chosen, replace(facts, deviation=deviation, attention=attention))

    def test_equal_facts_give_equal_runs(self, chosen: Selector) -> None:
        """Whatever was asked before, and whatever random numbers are due: ranks of an engine must choose alike."""
        every = list(cases(chosen))
        first = [select(chosen, facts) for facts in every]
        random.seed(1)
        np.random.seed(1)
        for facts, before in reversed(list(zip(every, first, strict=True))):
            assert select(chosen, facts) == before, "the runs changed from one call to the next"

    def test_another_process_chooses_alike(self, chosen: Selector) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "7"}
        command = [sys.executable, "-c", IN_ANOTHER_PROCESS, self.selector]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
        assert json.loads(done.stdout) == choices(self.selector), "two processes chose different tokens"

    def test_threads_may_share_it(self, chosen: Selector) -> None:
        every = list(cases(chosen))
        alone = [select(chosen, facts) for facts in every]

        def work(thread: int) -> None:
            for number in range(len(every)):
                place = (number * (2 * thread + 1) + thread) % len(every)  # each has other facts than the others
                assert select(chosen, every[place]) == alone[place]

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(work, range(4)))

    def test_a_long_prompt_takes_a_quarter_of_a_second(self, chosen: Selector) -> None:
        segments = tuple(Segment(start, start + 256, 0) for start in range(0, LONG_TOKENS, 256))
        bare = Facts(segments, budget(chosen, 0.15, LONG_TOKENS), 16)
        facts = _with_needs(bare, chosen, np.random.default_rng(0))
        seconds = []
        for _ in range(3):
            start = time.thread_time()
            select(chosen, facts)
            seconds.append(time.thread_time() - start)
        assert min(seconds) <= SECONDS_MAX, f"{min(seconds):.2f} s of a processor for {LONG_TOKENS} tokens"


def cases(chosen: Selector) -> Iterator[Facts]:
    """Facts by fixed seeds: only those that the selector needs."""
    for seed in range(CASES):
        rng = np.random.default_rng(seed)
        segments: list[Segment] = []
        end = 0
        for _ in range(int(rng.integers(1, 6))):
            start = end + int(rng.choice([0, 1, 13]))
            end = start + int(rng.choice([1, 2, 17, 64]))
            segments.append(Segment(start, end, int(rng.integers(0, 1000))))
        tokens = sum(segment.end - segment.start for segment in segments)
        limit = budget(chosen, float(rng.choice([0.0, 0.05, 0.15, 0.5, 1.0])), tokens)
        yield _with_needs(Facts(tuple(segments), limit, int(rng.choice([1, 16, 32]))), chosen, rng)


def choices(name: str) -> list[list[list[int]]]:
    """What the selector of this name chooses in each case."""
    chosen = selector(name)
    return [[list(run) for run in select(chosen, facts)] for facts in cases(chosen)]


def _with_needs(facts: Facts, chosen: Selector, rng: np.random.Generator) -> Facts:
    layers = int(rng.integers(1, 3))
    deviation: NDArray[np.float32] = rng.choice([0, 1, 2, 5], (layers, facts.tokens)).astype(np.float32)
    if layers > 1:
        deviation[1:, rng.random(facts.tokens) < 0.5] = np.nan
    attention: NDArray[np.float32] = rng.random(facts.tokens, np.float32)
    return replace(
        facts,
        deviation=deviation if Need.DEVIATION in chosen.needs else None,
        attention=attention if Need.ATTENTION in chosen.needs else None,
    )
