"""The task: questions about facts, some of which can only be understood with an earlier document in sight.

A document says `E v` (an entity and its value) or `SAME v` (a value of the entity that was named last, in an earlier
document).  All else is filler and stray values that belong to no entity.  `NAMED E` asks for the value beside the entity,
`SAME_OF E` for the one that SAME says of it.  KV of a SAME that was computed in another prompt speaks of that prompt's
entity.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final, NamedTuple

BOS, DOCUMENT, SAME, NAMED, SAME_OF = range(5)
FILLERS: Final = range(5, 66)
ENTITIES: Final = range(66, 98)
VALUES: Final = range(98, 162)
VOCABULARY: Final = VALUES.stop

QUESTIONS: Final = (NAMED, SAME_OF)
EMPTY_SHARE: Final = 0.1
NAME_SHARE: Final = 0.15
STRAY_SHARE: Final = 0.5


class Question(NamedTuple):
    kind: int
    entity: int
    value: int

    @property
    def across(self) -> bool:
        """Whether the answer needs more than one document."""
        return self.kind != NAMED

    @property
    def tokens(self) -> list[int]:
        return [self.kind, self.entity]


class Sample(NamedTuple):
    documents: list[list[int]]
    questions: list[Question]


def document(random: Random, length: int, fact: tuple[int, int] | None) -> list[int]:
    """Return `length` >= 3 tokens of filler that say `fact`, the subject and its value, at a random place."""
    tokens = [DOCUMENT, *random.choices(FILLERS, k=length - 1)]
    places = set(range(1, length))
    if fact is not None:
        at = random.randrange(1, length - 1)
        tokens[at : at + 2] = fact
        places -= {at, at + 1}
    if places and random.random() < STRAY_SHARE:
        tokens[random.choice(sorted(places))] = random.choice(VALUES)
    return tokens


def sample(random: Random, documents: int, length: int) -> Sample:
    """Return documents of `length` tokens each, in their order, and every question that they answer."""
    texts: list[list[int]] = []
    questions: list[Question] = []
    unnamed = random.sample(ENTITIES, documents)
    entity: int | None = None  # the one named last, until SAME has said its value
    for index in range(documents):
        value = random.choice(VALUES)
        if index and random.random() < EMPTY_SHARE:
            texts.append(document(random, length, None))
        elif entity is None or random.random() < NAME_SHARE:
            entity = unnamed.pop()
            texts.append(document(random, length, (entity, value)))
            questions.append(Question(NAMED, entity, value))
        else:
            texts.append(document(random, length, (SAME, value)))
            questions.append(Question(SAME_OF, entity, value))
            entity = None
    return Sample(texts, questions)


class Lesson(NamedTuple):
    """Documents, questions with their answers, and what to predict: (place, token) pairs.

    `hints` are places in `documents`, and the auxiliary targets: at SAME, and at what is said of an entity, that entity.
    `answers` are places in `questions`.
    """

    documents: list[int]
    hints: list[tuple[int, int]]
    questions: list[int]
    answers: list[tuple[int, int]]


def lesson(random: Random, documents: int, length: int, lead: Sequence[int]) -> Lesson:
    """Return a sample behind the tokens `lead`, with all of its questions."""
    sampled = sample(random, documents, length)
    tokens = [*lead, *(token for text in sampled.documents for token in text)]
    asked = random.sample(sampled.questions, len(sampled.questions))
    answers = [(3 * index + 1, question.value) for index, question in enumerate(asked)]
    return Lesson(tokens, _hints(tokens), [token for each in asked for token in (*each.tokens, each.value)], answers)


def _hints(tokens: list[int]) -> list[tuple[int, int]]:
    entity, before = BOS, BOS
    hints: list[tuple[int, int]] = []
    for place, token in enumerate(tokens):
        if token == SAME or before == SAME or (before in ENTITIES and token in VALUES):
            hints.append((place, entity))
        if token in ENTITIES:
            entity = token
        before = token
    return hints
