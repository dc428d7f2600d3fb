"""Many clients at once: prompts that begin alike, prompts of their own, and clients that leave."""

from __future__ import annotations

import random
from collections.abc import Sequence

from demo.prompts import random_prompt
from tests.engine.concurrent_engine import RUNNING_MAX, Request

BEGINNING_TOKENS = (256, 320, 512, 640, 768, 1_024)
SHARED_SHARE = 0.7
"""The share of prompts that begin like others."""
LEAVING_SHARE = 0.25
QUEUE_SECONDS = (0.005, 0.15)
"""A client that leaves this early is still in the queue."""
LEAVE_SECONDS = (0.01, 4.0)
LEAVE_TOKENS = (1, 6)


def mixed_prompts(seed: int, count: int) -> list[list[int]]:
    """Prompts of a few hundred tokens, none twice."""
    rng = random.Random(seed)
    beginnings = [random_prompt(seed * 1_000 + number, tokens) for number, tokens in enumerate(BEGINNING_TOKENS)]
    prompts = []
    for number in range(count):
        beginning = rng.choice(beginnings) if rng.random() < SHARED_SHARE else []
        own = random_prompt(seed * 1_000 + 100 + number, rng.randrange(40, 400))
        prompts.append(beginning + own)
    return prompts


def clients(seed: int, prompts: Sequence[Sequence[int]], *, reckless: bool) -> list[Request]:
    """One client for each prompt, in another order for each seed; some of them leave.

    They leave in the middle of their answer; or, with a prompt of their own that nothing is cached of, they leave the
    queue.  Reckless ones leave at any time, which a stock engine does not always survive (`stock_limits.py`).
    """
    rng = random.Random(seed)
    requests = []
    for place, prompt in enumerate(rng.sample(prompts, len(prompts))):
        if rng.random() >= LEAVING_SHARE:
            requests.append(Request(prompt))
        elif reckless:
            requests.append(Request(prompt, leave_after_seconds=rng.uniform(*LEAVE_SECONDS)))
        elif place < 2 * RUNNING_MAX:
            requests.append(Request(prompt, leave_after_tokens=rng.randint(*LEAVE_TOKENS)))
        else:
            own = random_prompt(1_000_000 + seed * 1_000 + place, len(prompt))
            requests.append(Request(own, leave_after_seconds=rng.uniform(*QUEUE_SECONDS)))
    return requests
