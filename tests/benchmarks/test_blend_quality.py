"""The quality benchmark's task: what a prompt asks is what its documents say, and follows from the seed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from benchmarks.blend_quality.prompts import DOCUMENTS, LENGTH, WAYS, Prompt, Way, prompts
from benchmarks.blend_quality.run import FIGURES, QUESTION_TOKENS, ask, run
from benchmarks.blend_quality.selectors import Row, rows
from benchmarks.blend_quality.task import (
    BOS,
    ENTITIES,
    NAMED,
    QUESTIONS,
    SAME,
    SAME_OF,
    VALUES,
    lesson,
    sample,
)
from benchmarks.peer import BenchmarkError
from demo.answer import Answer

SEEDS = range(200)


def facts(documents: list[list[int]]) -> dict[tuple[int, int], int]:
    """What a careful reader knows: the value of (question, entity)."""
    known: dict[tuple[int, int], int] = {}
    entity = BOS
    for document in documents:
        for token, after in pairwise(document):
            if token in ENTITIES:
                entity = token
                known[NAMED, entity] = after
            elif token == SAME:
                known[SAME_OF, entity] = after
    return known


@pytest.mark.parametrize("length", [3, 6, LENGTH])
def test_questions_are_those_that_the_documents_answer(length: int) -> None:
    kinds = set()
    for seed in SEEDS:
        documents, questions = sample(Random(seed), DOCUMENTS, length)
        assert {len(document) for document in documents} == {length}
        assert facts(documents) == {(kind, entity): value for kind, entity, value in questions}
        kinds |= {question.kind for question in questions}
        assert all(question.across == (question.kind != NAMED) for question in questions)
    assert kinds == set(QUESTIONS)


def test_a_document_can_have_a_value_that_belongs_to_nothing() -> None:
    documents = [document for seed in SEEDS for document in sample(Random(seed), DOCUMENTS, LENGTH).documents]
    strays = [
        sum(token in VALUES and before not in {SAME, *ENTITIES} for before, token in pairwise(document))
        for document in documents
    ]
    assert set(strays) == {0, 1}


def test_a_lesson_hints_at_the_entity_where_something_is_said_of_it() -> None:
    for seed in SEEDS:
        documents, hints, questions, answers = lesson(Random(seed), DOCUMENTS, 12, [BOS])
        said = {(entity, documents[place]) for place, entity in hints}
        assert len(answers) == len(questions) // 3 > 0
        for place, answer in answers:
            kind, entity, value = questions[place - 1 : place + 2]
            assert value == answer
            assert (entity, answer) in said
            assert kind == NAMED or (entity, SAME) in said


@pytest.mark.parametrize("way", WAYS)
def test_a_prompt_has_each_stored_document_at_another_place_and_follows_from_the_seed(way: Way) -> None:
    asked = list(prompts(way, 20))
    assert asked == list(prompts(way, 20))
    assert [prompt.question.across for prompt in asked] == [False, True] * 10
    assert {prompt.question.kind for prompt in asked} == set(QUESTIONS)
    for prompt in asked:
        assert prompt.tokens[-2:] == prompt.question.tokens
        for stored, (start, end) in zip(prompt.stored, prompt.segments, strict=True):
            assert stored[-LENGTH:] == prompt.tokens[start:end]
            assert len(stored) % LENGTH == 0
            assert len(stored) - LENGTH != start


class ScriptedEngine:
    """Answers right in full; else with the value that the selector's name says, or as if documents were missing."""

    def __init__(self, missing: int = 0) -> None:
        self.missing = missing

    def ask_together(self, prompts: Sequence[Sequence[int]], *, max_tokens: int = 8) -> list[Answer]:
        assert all(prompt in self.prompt.stored for prompt in prompts)
        return []

    def ask_with(self, prompt: Sequence[int], params: Mapping[str, Any], *, max_tokens: int = 8) -> Answer:
        question, reused = self.prompt.question, len(prompt) - QUESTION_TOKENS
        if not params["lmcache.blend"]:
            return Answer(len(prompt), 0, 0.2, (question.value,), ())
        recomputed = int(params["lmcache.blend_recompute_ratios"][0] * reused)
        blend = {"reused_tokens": reused - recomputed - self.missing, "recomputed_tokens": recomputed}
        is_right = params["lmcache.blend_selector"] == "cacheblend" or not question.across
        said = question.value if is_right else BOS
        return Answer(len(prompt), reused, 0.1, (said,), (), {"lmcache.blend": blend})

    def each(self, asked: Iterable[Prompt]) -> Iterator[Prompt]:
        for self.prompt in asked:
            yield self.prompt


def test_rows_are_counted_apart() -> None:
    engine = ScriptedEngine()
    asked = rows([0.25], ["lego_link", "cacheblend"])
    waited_for: list[int] = []
    scores = run(engine, engine.each(prompts("among others", 4)), asked, waited_for.append)
    assert waited_for == [32, 72, 112, 152]  # 8 documents behind 3 others; 8 chunks of the full prompt before them
    shares = {name: score.figures() for name, score in scores.items()}
    assert list(shares) == [
        "none, K not turned",
        "none",
        "check layers only",
        "lego_link 25%",
        "cacheblend 25%",
        "full",
    ]
    tokens = DOCUMENTS * LENGTH + QUESTION_TOKENS
    assert shares["full"] == dict(zip(FIGURES, (1, 1, 1, tokens, 200), strict=True))
    assert shares["cacheblend 25%"] == dict(zip(FIGURES, (1, 1, 1, tokens // 4 + 3, 100), strict=True))
    assert shares["lego_link 25%"] == dict(zip(FIGURES, (1, 0, 0.5, tokens // 4 + 3, 100), strict=True))
    assert shares["none"]["computed_tokens"] == QUESTION_TOKENS


def test_an_answer_that_was_blended_in_part_is_an_error() -> None:
    engine = ScriptedEngine(missing=64)
    (prompt,) = engine.each(prompts("alone", 1))
    with pytest.raises(BenchmarkError, match="none: not all of 512 tokens were blended"):
        ask(engine, prompt, Row("none", "none"))
