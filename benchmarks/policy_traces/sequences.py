"""Patterns in which order matters: scans, loops, and interest that moves."""

from __future__ import annotations

import random
from itertools import chain

from benchmarks.policy_traces.request_list import RequestList, one_each_second


def scan(blocks: int = 60_000, prompt: int = 1) -> RequestList:
    """Everything once."""
    return one_each_second(list(range(at, at + prompt)) for at in range(0, blocks, prompt))


def loop(blocks: int = 2_000, rounds: int = 30, prompt: int = 1) -> RequestList:
    """The same in turn, over and over."""
    return one_each_second(
        list(range(at, at + prompt)) for _ in range(rounds) for at in range(0, blocks // prompt * prompt, prompt)
    )


def loops(rounds: int = 12) -> RequestList:
    """Loops of four lengths take turns."""
    lengths = [(turn % 4, (300, 900, 2_500, 6_000)[turn % 4]) for turn in range(rounds)]
    return one_each_second(
        [place * 10**6 + at]
        for place, length in lengths
        for _ in range(max(2, 12_000 // length))
        for at in range(length)
    )


def working_sets(seed: int, items: int = 800, sets: int = 20, requests: int = 5_000) -> RequestList:
    """Uniform over a set that changes all at once."""
    rng = random.Random(seed)
    return one_each_second([turn * items + rng.randrange(items)] for turn in range(sets) for _ in range(requests))


def drift(seed: int, width: int = 1_500, requests: int = 100_000, step: int = 20) -> RequestList:
    """Uniform over a window that moves."""
    rng = random.Random(seed)
    return one_each_second([at // step + rng.randrange(width)] for at in range(requests))


def recency(seed: int, requests: int = 100_000, new: float = 0.2, mean_depth: float = 500.0) -> RequestList:
    """Depths in a stack of the last used ones are exponential: recency is all there is to know."""
    rng = random.Random(seed)
    stack, prompts, fresh = [0], [], 1
    for _ in range(requests):
        depth = int(rng.expovariate(1 / mean_depth))
        if rng.random() < new or depth >= len(stack):
            block, fresh = fresh, fresh + 1
        else:
            block = stack.pop(-1 - depth)
        stack.append(block)
        if len(stack) > 20_000:
            del stack[:5_000]
        prompts.append([block])
    return one_each_second(prompts)


def random_walk(seed: int, items: int = 30_000, requests: int = 100_000, step: int = 200) -> RequestList:
    """A step back or forth each time."""
    rng = random.Random(seed)
    at, prompts = items // 2, []
    for _ in range(requests):
        at = (at + rng.randint(-step, step)) % items
        prompts.append([at])
    return one_each_second(prompts)


def one_after_another(parts: list[RequestList]) -> RequestList:
    """Patterns that follow each other, of blocks that have nothing in common."""
    shifted, begin = [], 0.0
    for place, part in enumerate(parts):
        base = place * 10**10
        shifted.append([type(r)(begin + r.seconds, [base + block for block in r.blocks]) for r in part])
        begin = shifted[-1][-1].seconds
    return list(chain.from_iterable(shifted))
