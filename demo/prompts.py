"""Prompts that share nothing with each other."""

from __future__ import annotations

import random

VOCABULARY = range(3, 31_000)
"""Token numbers of the tiny model, without the special ones."""


def random_prompt(seed: int, tokens: int) -> list[int]:
    """The same prompt for the same arguments, everywhere."""
    return random.Random(f"{seed}:{tokens}").choices(VOCABULARY, k=tokens)
