"""The prompts that every cache has to serve: short and long, at chunk boundaries and beside them."""

from __future__ import annotations

from demo.cache_rule import whole_chunks
from demo.prompts import random_prompt

CHUNK_SIZES = [32, 96, 256]
LENGTHS = [300, 511, 512, 513, 768, 1_000, 2_048, 3_072, 6_000, 8_000]
PROMPTS = [random_prompt(1, length) for length in LENGTHS]

SHARED_TOKENS = 1_000
"""So much of the longest prompt begins each branch."""


def branch(seed: int) -> list[int]:
    """A prompt that begins like the longest of the ladder and then goes its own way.

    Only such a prompt shows whether each chunk lies under its own name: attention does not care about the order of what
    is cached, so a prompt whose chunks are all there, but exchanged among themselves, is answered right.
    """
    return PROMPTS[-1][:SHARED_TOKENS] + random_prompt(seed, 150)


def chunk_count(chunk_tokens: int) -> int:
    """How many objects a cache keeps when it has seen all of the ladder."""
    return sum(whole_chunks(length, chunk_tokens) for length in LENGTHS)
