"""The prompts of a run: documents, a question about them, and the prompts that store each document beforehand."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final, Literal, NamedTuple

from benchmarks.blend_quality.task import BOS, NAMED, SAME_OF, Question, sample

DOCUMENTS: Final = 8
LENGTH: Final = 64
OTHERS: Final = 3
ASKED: Final = (NAMED, SAME_OF)

Way = Literal["alone", "among others"]
WAYS: Final[tuple[Way, ...]] = ("alone", "among others")


class Prompt(NamedTuple):
    """`stored` has a prompt for each document, which ends with it; `segments` says where it is in `tokens`."""

    tokens: list[int]
    question: Question
    stored: list[list[int]]
    segments: list[tuple[int, int]]


def prompts(way: Way, count: int) -> Iterator[Prompt]:
    """Yield the same prompts each time; every other one has a question about one document."""
    for number in range(count):
        yield _prompt(Random(f"{way} {number}"), way, ASKED[number % len(ASKED)])


def _prompt(random: Random, way: Way, kind: int) -> Prompt:
    texts, questions = sample(random, DOCUMENTS, LENGTH)
    asked = [question for question in questions if question.kind == kind]
    if not asked:
        return _prompt(random, way, kind)
    question = random.choice(asked)
    tokens = [BOS, *(token for text in texts for token in text), *question.tokens]
    stored = [[*_others(random, way), *text] for text in texts]
    segments = [(1 + index * LENGTH, 1 + (index + 1) * LENGTH) for index in range(DOCUMENTS)]
    return Prompt(tokens, question, stored, segments)


def _others(random: Random, way: Way) -> list[int]:
    if way == "alone":
        return []
    return [token for text in sample(random, OTHERS, LENGTH).documents for token in text]
