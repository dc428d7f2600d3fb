"""Estimates against exact sets."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmcache_observability.metrics.distinct_chunks import DistinctChunks, Words, marks

SIGMAS = 5.0


def words(seed: int, count: int) -> Words:
    return np.random.default_rng(seed).integers(0, 2**64, count, np.uint64)


def estimate(chunks: DistinctChunks, given_words: Words) -> float:
    return sum(weight for _, weight in chunks.add(marks(given_words)))


@pytest.mark.parametrize("precision", [10, 14, 18])
@pytest.mark.parametrize("count", [1, 10, 1000, 100_000])
def test_the_estimate_is_within_its_error(precision: int, count: int) -> None:
    found = estimate(DistinctChunks(precision), words(count, count))
    assert abs(found - count) <= SIGMAS * count / (2 * 2**precision) ** 0.5 + 0.01


def test_the_estimates_have_the_error_that_is_said() -> None:
    """And no bias: over many sketches the mean is right."""
    count, precision, trials = 3000, 10, 200
    found = [estimate(DistinctChunks(precision), words(seed, count)) for seed in range(trials)]
    said = count / (2 * 2**precision) ** 0.5
    assert abs(np.mean(found) - count) < SIGMAS * said / trials**0.5
    assert 0.8 * said < np.std(found) < 1.2 * said


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=60), max_size=30), st.integers(0, 2**32))
def test_what_came_before_is_never_new(batches: list[list[int]], seed: int) -> None:
    """Whatever the batches: only a chunk's first occurrence counts, and all of them together about once each."""
    chunks, universe, seen = DistinctChunks(14), words(seed, 301), set[int]()
    total = 0.0
    for batch in batches:
        for index, weight in chunks.add(marks(universe[batch])):
            assert batch[index] not in seen
            assert batch[index] not in batch[:index]
            assert weight >= 1.0
            total += weight
        seen.update(batch)
    assert abs(total - len(seen)) <= 0.05 * len(seen) + 3


def test_batches_are_the_same_as_one_by_one() -> None:
    together, apart = DistinctChunks(12), DistinctChunks(12)
    given_words = np.tile(words(3, 500), 2)
    one_by_one = [weight for word in given_words for _, weight in apart.add(marks(np.array([word])))]
    assert [weight for _, weight in together.add(marks(given_words))] == one_by_one


def generations() -> Iterator[Words]:
    for seed in range(4):
        yield words(seed, 2000)


def test_what_does_not_come_again_is_forgotten_after_two_generations() -> None:
    chunks, (first, second, third, _) = DistinctChunks(14), generations()
    assert estimate(chunks, first) == pytest.approx(2000, rel=0.05)
    chunks.next_generation()
    assert estimate(chunks, second) == pytest.approx(2000, rel=0.05)
    assert estimate(chunks, first[:1000]) == 0
    chunks.next_generation()
    assert estimate(chunks, third) == pytest.approx(2000, rel=0.1)
    assert estimate(chunks, first[:1000]) == 0, "it came again in the second generation"
    assert estimate(chunks, second) == 0
    chunks.next_generation()
    chunks.next_generation()
    assert estimate(chunks, first) == pytest.approx(2000, rel=0.05)


def test_its_size_is_fixed() -> None:
    chunks = DistinctChunks(14)
    before = chunks.state_bytes
    chunks.add(marks(words(1, 50_000)))
    chunks.next_generation()
    chunks.add(marks(words(2, 50_000)))
    assert chunks.state_bytes == before == 2 * 2**14
