"""The quality benchmark's task: what a prompt asks is what its documents say, and follows from the seed."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from benchmarks.blend_quality.prompts import DOCUMENTS, LENGTH, WAYS, Way, prompts
from benchmarks.blend_quality.task import ENTITIES, NAMED, QUESTIONS, SAME, VALUES, lesson, sample

SEEDS = range(200)


def facts(documents: list[list[int]]) -> dict[tuple[int, int], int]:
    """What a careful reader knows: the value of (question, entity)."""
    known: dict[tuple[int, int], int] = {}
    entity, links = -1, 0
    for document in documents:
        for token, after in pairwise(document):
            if token in ENTITIES:
                entity, links = token, 0
            elif token == SAME:
                links += 1
            else:
                continue
            known[QUESTIONS[links], entity] = after
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
    strays = [sum(token in VALUES for token in document) - len(facts([document])) for document in documents]
    assert set(strays) == {0, 1}


def test_a_lesson_names_the_entity_at_the_words_that_speak_of_it() -> None:
    for seed in SEEDS:
        tokens, answers, entities = lesson(Random(seed), DOCUMENTS, 12)
        assert len(tokens) == len(answers) == len(entities)
        spoken = {at: entity for at, entity in enumerate(entities) if entity is not None}
        asked = {at: answer for at, answer in enumerate(answers) if answer is not None}
        assert all(tokens[at] == SAME or tokens[at] in VALUES for at in spoken)
        for at, answer in asked.items():
            entity = tokens[at]
            assert tokens[at + 1] == answer
            assert answer in {tokens[place] for place, spoken_of in spoken.items() if spoken_of == entity}
        assert len(asked) == sum(tokens[at] in VALUES for at in spoken)


@pytest.mark.parametrize("way", WAYS)
def test_a_prompt_has_each_stored_document_at_another_place_and_follows_from_the_seed(way: Way) -> None:
    asked = list(prompts(way, 20))
    assert asked == list(prompts(way, 20))
    assert [prompt.question.across for prompt in asked] == [False, True] * 10
    for prompt in asked:
        assert prompt.tokens[-2:] == prompt.question.tokens
        for stored, (start, end) in zip(prompt.stored, prompt.segments, strict=True):
            assert stored[-LENGTH:] == prompt.tokens[start:end]
            assert len(stored) % LENGTH == 0
            assert len(stored) - LENGTH != start
