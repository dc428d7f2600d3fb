"""Patterns in which some prompts are asked for more often than others."""

from __future__ import annotations

import random

from benchmarks.policy_traces.request_list import RequestList, fresh_blocks, one_each_second, zipf


def popular(seed: int, exponent: float, blocks: int = 20_000, asked: int = 100_000, prompt: int = 1) -> RequestList:
    """Prompts of one length, with shares by Zipf's law."""
    rng = random.Random(seed)
    draw = zipf(rng, blocks // prompt, exponent)
    return one_each_second(_prompt(draw(), prompt) for _ in range(asked // prompt))


def popular_of_many_sizes(seed: int, exponent: float = 0.8, items: int = 1_500, asked: int = 100_000) -> RequestList:
    """Most prompts are short, a few have up to 60 blocks."""
    rng = random.Random(seed)
    draw = zipf(rng, items, exponent)
    sizes = [min(60, 1 + int(rng.paretovariate(1.1))) for _ in range(items)]
    prompts: list[list[int]] = []
    while asked > 0:
        item = draw()
        prompts.append(_prompt(item, sizes[item]))
        asked -= sizes[item]
    return one_each_second(prompts)


def popular_and_scans(
    seed: int, scan_share: float, burst: int = 1, exponent: float = 0.9, items: int = 10_000, asked: int = 100_000
) -> RequestList:
    """A share of the requests is for blocks that come once, `burst` of them in a row."""
    rng = random.Random(seed)
    draw, fresh = zipf(rng, items, exponent), fresh_blocks()
    bursts = scan_share / burst
    prompts: list[list[int]] = []
    while len(prompts) < asked:
        if rng.random() < bursts / (1 - scan_share + bursts):
            prompts += [fresh(1) for _ in range(burst)]
        else:
            prompts.append([draw()])
    return one_each_second(prompts)


def popular_for_a_while(seed: int, items: int = 6_000, asked: int = 120_000, prompt: int = 1) -> RequestList:
    """Eight times other prompts are popular, and half of all are other ones."""
    rng = random.Random(seed)
    prompts: list[list[int]] = []
    for phase in range(8):
        draw = zipf(rng, items, 0.9)
        prompts += [_prompt(phase * items // 2 + draw(), prompt) for _ in range(asked // 8 // prompt)]
    return one_each_second(prompts)


def system_prompts(seed: int, systems: int = 40, length: int = 10, tail: int = 5, asked: int = 100_000) -> RequestList:
    """System prompts with shares by Zipf's law, each time with a question that comes once."""
    rng = random.Random(seed)
    draw, fresh = zipf(rng, systems, 0.8), fresh_blocks()
    return one_each_second(_prompt(draw(), length) + fresh(tail) for _ in range(asked // (length + tail)))


def documents(seed: int, items: int = 600, asked: int = 120_000) -> RequestList:
    """Questions of one block on documents of 5 to 60 blocks."""
    rng = random.Random(seed)
    draw, fresh = zipf(rng, items, 0.7), fresh_blocks()
    sizes = [rng.randint(5, 60) for _ in range(items)]
    prompts: list[list[int]] = []
    while asked > 0:
        item = draw()
        prompts.append(_prompt(item, sizes[item]) + fresh(1))
        asked -= sizes[item]
    return one_each_second(prompts)


def _prompt(item: int, blocks: int) -> list[int]:
    return list(range(item * 1_000, item * 1_000 + blocks))
