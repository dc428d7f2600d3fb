"""How much of a prompt an engine takes from a cache that holds all of it."""

from __future__ import annotations


def whole_chunks(prompt_tokens: int, chunk_tokens: int) -> int:
    """A cache keeps whole chunks only; this many of a prompt."""
    return prompt_tokens // chunk_tokens


def cached_tokens(prompt_tokens: int, chunk_tokens: int) -> int:
    """What vLLM reports as cached: all whole chunks, but never the prompt's last token, which it computes to go on from."""
    return min(whole_chunks(prompt_tokens, chunk_tokens) * chunk_tokens, prompt_tokens - 1)
