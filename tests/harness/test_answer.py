"""When two answers of an engine count as the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from demo.answer import TOLERANCE, Answer
from demo.cache_rule import cached_tokens

ANSWER = Answer(
    prompt_tokens=6_000,
    cached_tokens=0,
    seconds_to_first_token=1.0,
    output=(5, 6, 7),
    first=((5, -1.0), (8, -2.0), (9, -3.0)),
)


def test_how_it_was_computed_does_not_matter() -> None:
    assert ANSWER.says_the_same_as(replace(ANSWER, cached_tokens=5_888, seconds_to_first_token=0.1))


@pytest.mark.parametrize(
    "other",
    [
        replace(ANSWER, output=(5, 6, 8)),
        replace(ANSWER, output=(5, 6)),
        replace(ANSWER, prompt_tokens=5_999),
        replace(ANSWER, first=((5, -1.0), (8, -2.0 - 2 * TOLERANCE), (9, -3.0))),
        replace(ANSWER, first=((5, -1.0), (4, -2.0), (9, -3.0))),
    ],
    ids=["another token", "fewer tokens", "another prompt", "another probability", "another likely token"],
)
def test_a_difference_is_seen_from_both_sides(other: Answer) -> None:
    assert not ANSWER.says_the_same_as(other)
    assert not other.says_the_same_as(ANSWER)


def test_rounding_is_not_a_difference() -> None:
    near = replace(ANSWER, first=((5, -1.0001), (8, -2.0), (9, -3.0)))
    assert ANSWER.drift(near) == pytest.approx(0.0001)
    assert ANSWER.says_the_same_as(near)


def test_neighbours_at_the_end_of_the_list_may_change_places() -> None:
    near_tie = replace(ANSWER, first=((5, -1.0), (8, -2.0), (4, -3.0005)))
    assert ANSWER.says_the_same_as(near_tie)
    assert near_tie.says_the_same_as(ANSWER)


@pytest.mark.parametrize(
    ("prompt", "chunk", "cached"),
    [
        (31, 32, 0),
        (32, 32, 31),
        (33, 32, 32),
        (95, 96, 0),
        (300, 96, 288),
        (768, 96, 767),
        (255, 256, 0),
        (256, 256, 255),
        (257, 256, 256),
        (1_000, 256, 768),
        (6_000, 256, 5_888),
        (6_144, 256, 6_143),
    ],
)
def test_cached_tokens_as_seen_with_the_public_server(prompt: int, chunk: int, cached: int) -> None:
    assert cached_tokens(prompt, chunk) == cached
