"""The task: questions about facts, some of which can only be understood with an earlier document in sight.

A document says `E v` (an entity and its value), `SAME v` (a value of the entity that was named last, in an earlier
document) or `SAME F` (F is another name of that entity).  All else is filler and stray values that belong to no entity.
`NAMED E` asks for the value beside the entity, `SAME_OF E` for the value that SAME says of it, and `CHAIN_OF E` for the
value that SAME says of its other name: one thing after the other has to be found.  KV of a SAME that was computed in
another prompt speaks of that prompt's entity.
"""

from __future__ import annotations

from random import Random
from typing import Final, NamedTuple

BOS, DOCUMENT, SAME, NAMED, SAME_OF, CHAIN_OF = range(6)
FILLERS: Final = range(6, 66)
ENTITIES: Final = range(66, 98)
VALUES: Final = range(98, 162)
VOCABULARY: Final = VALUES.stop

QUESTIONS: Final = (NAMED, SAME_OF, CHAIN_OF)
EMPTY_SHARE: Final = 0.15
NAME_SHARE: Final = 0.25
OTHER_NAME_SHARE: Final = 0.5
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
        places -= {at, at + 1, at + 2}
    if places and random.random() < STRAY_SHARE:
        tokens[random.choice(sorted(places))] = random.choice(VALUES)
    return tokens


def sample(random: Random, documents: int, length: int) -> Sample:
    """Return documents of `length` tokens each, in their order, and every question that they answer."""
    texts: list[list[int]] = []
    questions: list[Question] = []
    unnamed = random.sample(ENTITIES, documents)
    entity: int | None = None  # the one named last, until SAME has said its value
    first_name: int | None = None  # of that entity, where it has two
    for index in range(documents):
        value = random.choice(VALUES)
        if index and random.random() < EMPTY_SHARE:
            texts.append(document(random, length, None))
        elif entity is None or random.random() < NAME_SHARE:
            entity, first_name = unnamed.pop(), None
            texts.append(document(random, length, (entity, value)))
            questions.append(Question(NAMED, entity, value))
        elif first_name is None and random.random() < OTHER_NAME_SHARE:
            entity, first_name = unnamed.pop(), entity
            texts.append(document(random, length, (SAME, entity)))
        else:
            texts.append(document(random, length, (SAME, value)))
            questions.append(Question(SAME_OF, entity, value))
            if first_name is not None:
                questions.append(Question(CHAIN_OF, first_name, value))
            entity = None
    return Sample(texts, questions)


class Lesson(NamedTuple):
    """One sequence to learn from, and the (place, token) pairs to predict in it: answers at its end, and hints before."""

    tokens: list[int]
    answers: list[tuple[int, int]]
    hints: list[tuple[int, int]]


def lesson(random: Random, documents: int, length: int) -> Lesson:
    """Return a sample with all of its questions answered at its end.

    Hints are the auxiliary targets: at SAME, and at what is said of an entity, that entity.
    """
    texts, questions = sample(random, documents, length)
    tokens = [BOS] if random.random() < 0.5 else []
    tokens += [token for text in texts for token in text]
    hints = _hints(tokens)
    answers = []
    for question in random.sample(questions, len(questions)):
        tokens += [*question.tokens, question.value]
        answers.append((len(tokens) - 2, question.value))
    return Lesson(tokens, answers, hints)


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
