"""Compare what an engine answered with what it should have."""

from __future__ import annotations

from collections.abc import Sequence

from demo.answer import Answer
from demo.cache_rule import cached_tokens, whole_chunks


def assert_right(answers: Sequence[Answer], reference: Sequence[Answer]) -> None:
    """Every answer says what the model says without a cache."""
    wrong = [
        f"{mine.prompt_tokens} tokens, {mine.cached_tokens} cached: {mine.output} instead of {truth.output}, "
        f"log probabilities off by {mine.drift(truth):.4f}"
        for mine, truth in zip(answers, reference, strict=True)
        if not mine.says_the_same_as(truth)
    ]
    assert not wrong, "\n".join(wrong)


def assert_cached(answers: Sequence[Answer], chunk_tokens: int) -> None:
    """Every prompt came from the cache as far as it can."""
    wrong = [
        f"{answer.cached_tokens} of {answer.prompt_tokens} tokens came from the cache, instead of {expected}"
        for answer in answers
        if answer.cached_tokens != (expected := cached_tokens(answer.prompt_tokens, chunk_tokens))
    ]
    assert not wrong, "\n".join(wrong)


def assert_branch(answer: Answer, truth: Answer, shared_tokens: int, chunk_tokens: int) -> None:
    """The whole chunks of the beginning that the prompt shares with another came from the cache, and the answer is right."""
    assert answer.cached_tokens == whole_chunks(shared_tokens, chunk_tokens) * chunk_tokens
    assert_right([answer], [truth])


def assert_computed(answers: Sequence[Answer]) -> None:
    """Nothing came from the cache."""
    hits = [f"{answer.cached_tokens} of {answer.prompt_tokens} tokens" for answer in answers if answer.cached_tokens]
    assert not hits, f"came from the cache unexpectedly: {', '.join(hits)}"
