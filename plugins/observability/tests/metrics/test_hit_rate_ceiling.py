"""The ceiling against a cache that really forgets nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmcache_core import Event, LookupFinished, LookupHashes, ObjectsAdded, ObjectsRemoved
from lmcache_observability.metrics.ceiling import ALL, Ceiling
from lmcache_observability.metrics.hash_batch import HashBatch
from lmcache_observability.metrics.hit_rate_ceiling import HitRateCeiling
from lmcache_observability.metrics.label_names import OTHER, LabelNames
from plugins.observability.tests.metrics.events import asked, came, left, lookup

TRACE = Path(__file__).parents[5] / "shared/data/traces/mooncake_conversation.jsonl"
NOW = 1000.0


def opened(salts_max: int = 256, retention: float = 86400.0) -> HitRateCeiling:
    return HitRateCeiling(LabelNames(1000, "plain"), salts_max, retention)


def tell(ceiling: HitRateCeiling, events: Iterable[Event], now: float = NOW) -> None:
    batch = list(events)
    ceiling.begin(HashBatch([each for each in batch if isinstance(each, LookupHashes | ObjectsAdded | ObjectsRemoved)]))
    for event in batch:
        match event:
            case LookupHashes():
                ceiling.asked(event)
            case LookupFinished():
                ceiling.answered(event)
            case ObjectsAdded():
                ceiling.stored(event)
            case ObjectsRemoved():
                ceiling.passed(event)
    ceiling.end(now)


def of(ceiling: HitRateCeiling, salt: str = ALL, window: str = "start", now: float = NOW) -> Ceiling:
    (found,) = [each for each in ceiling.ceilings(now) if (each.cache_salt, each.window) == (salt, window)]
    return found


def test_a_prompt_that_comes_twice_could_be_hit_once() -> None:
    ceiling = opened()
    tell(ceiling, [*lookup("a", range(100)), *lookup("b", range(100))])
    found = of(ceiling)
    assert (found.requested_chunks, found.actual) == (200, 0.0)
    assert found.ceiling == pytest.approx(0.5, abs=0.01)


def test_what_was_first_seen_before_the_window_began_is_a_hit_in_it() -> None:
    ceiling = opened()
    tell(ceiling, lookup("a", range(100)))
    later = NOW + 1000
    tell(ceiling, lookup("b", range(100)), later)
    assert of(ceiling, window="5m", now=later).ceiling == 1.0
    assert of(ceiling, window="1h", now=later).ceiling == pytest.approx(0.5, abs=0.01)


def test_what_was_forgotten_is_none() -> None:
    ceiling = opened(retention=100.0)
    for number, request in enumerate("abc"):
        tell(ceiling, lookup(request, range(100)), NOW + 201 * number)
        tell(ceiling, lookup(f"x{request}", [-number]), NOW + 201 * number + 100)
    assert of(ceiling, now=NOW + 600).ceiling == pytest.approx(0.0, abs=0.02)


def test_what_was_stored_before_it_was_asked_for_is_a_hit() -> None:
    """Chunks of an answer come back with the next turn of a conversation."""
    ceiling = opened()
    tell(ceiling, [came(range(50, 100)), *lookup("a", range(100))])
    assert of(ceiling).ceiling == pytest.approx(0.5, abs=0.01)


def test_what_was_hit_although_it_was_never_seen_counts_as_seen() -> None:
    """L2 keeps chunks over restarts."""
    ceiling = opened()
    tell(ceiling, lookup("a", range(100), hit=80))
    found = of(ceiling)
    assert found.actual == pytest.approx(0.8)
    assert found.ceiling == pytest.approx(0.8, abs=0.01)


def test_the_same_tokens_of_another_tenant_or_model_are_other_chunks() -> None:
    ceiling = opened()
    tell(ceiling, [*lookup("a", range(50), salt="x"), *lookup("b", range(50), salt="y")])
    tell(ceiling, lookup("c", range(50), salt="y", model="another"))
    tell(ceiling, [*lookup("d", range(50), salt="y"), left(range(3))])
    assert of(ceiling).ceiling == pytest.approx(0.25, abs=0.02)
    assert of(ceiling, "x").ceiling == 0.0
    assert of(ceiling, "y").ceiling == pytest.approx(1 / 3, abs=0.02)


def test_an_answer_may_come_in_a_later_batch_and_hashes_may_be_asked_again() -> None:
    ceiling = opened()
    first, answer = lookup("a", range(100), hit=10)
    tell(ceiling, [asked("a", range(30))])
    tell(ceiling, [first])
    tell(ceiling, [came(range(200, 300))])
    tell(ceiling, [answer])
    assert (of(ceiling).requested_chunks, of(ceiling).actual) == (100, 0.1)


def test_answers_without_hashes_count_nowhere() -> None:
    ceiling = opened()
    tell(ceiling, list(lookup("a", range(100)))[1:])
    assert ceiling.ceilings(NOW) == []


def test_lookups_that_are_never_answered_are_forgotten() -> None:
    ceiling = opened()
    big = list(range(2**16))
    tell(ceiling, [asked(f"r{number}", big) for number in range(18)])
    assert ceiling._pending_chunks <= 2**20
    assert list(ceiling._pending) == [("model", "", f"r{number}") for number in range(2, 18)]
    tell(ceiling, [asked(f"s{number}", [number]) for number in range(3000)])
    assert len(ceiling._pending) <= 2048


def test_salts_beyond_the_limit_are_counted_together() -> None:
    ceiling = opened(salts_max=2)
    for number in range(5):
        tell(ceiling, lookup(f"r{number}", range(10), salt=f"s{number}"))
    found = {each.cache_salt: each.requested_chunks for each in ceiling.ceilings(NOW) if each.window == "start"}
    assert found == {ALL: 50, "s0": 10, "s1": 10, OTHER: 30}


def test_a_tenant_that_is_called_like_all_of_them_counts_once() -> None:
    ceiling = opened()
    tell(ceiling, [*lookup("a", range(100), salt=ALL), *lookup("b", range(300), salt="s")])
    assert of(ceiling).requested_chunks == 400
    assert of(ceiling, OTHER).requested_chunks == 100


def test_requests_of_two_tenants_that_are_called_alike_are_distinguished() -> None:
    ceiling = opened()
    (asked_a, answer_a), (asked_b, answer_b) = (
        lookup("r", range(count), salt=salt) for count, salt in ((10, "a"), (20, "b"))
    )
    tell(ceiling, [asked_a, asked_b, answer_a, answer_b])
    assert (of(ceiling, "a").requested_chunks, of(ceiling, "b").requested_chunks) == (10, 20)


def test_what_a_salt_costs_is_what_its_setting_says() -> None:
    ceiling = opened()
    tell(ceiling, lookup("a", range(10), salt="one"))
    before = ceiling.state_bytes
    tell(ceiling, lookup("b", range(10), salt="two"))
    assert ceiling.state_bytes - before <= 43 * 1024


REQUESTS = st.lists(
    st.tuples(st.sampled_from(["x", "y"]), st.integers(0, 5), st.integers(1, 120), st.floats(0, 1)),
    min_size=1,
    max_size=25,
)


@settings(deadline=None, max_examples=80)
@given(REQUESTS, st.integers(1, 5))
def test_it_is_what_a_cache_without_limits_would_hit(requests: list[tuple[str, int, int, float]], batch: int) -> None:
    """Prompts of a few families, each a prefix of its family; how much of one was hit is anything that can be."""
    ceiling, seen, events = opened(), set[tuple[str, int]](), list[Event]()
    requested = hit = could = 0
    for number, (salt, family, length, share) in enumerate(requests):
        chunks = [family * 1000 + each for each in range(length)]
        known = sum((salt, chunk) in seen for chunk in chunks)
        was_hit = int(known * share)
        seen |= {(salt, chunk) for chunk in chunks}
        requested, hit, could = requested + length, hit + was_hit, could + known
        events += lookup(f"r{number}", chunks, was_hit, salt)
    for begin in range(0, len(events), batch):
        tell(ceiling, events[begin : begin + batch])
    found = of(ceiling)
    assert found.requested_chunks == requested
    assert found.actual == pytest.approx(hit / requested)
    assert abs(found.ceiling - could / requested) <= 0.03
    assert found.ceiling >= found.actual


@pytest.mark.skipif(not TRACE.exists(), reason="the trace is not part of the repository")
def test_a_real_trace() -> None:
    """The conversation trace of Mooncake: 12,031 requests in an hour, blocks of 512 tokens."""
    ceiling, seen, requested, could = opened(), set[int](), 0, 0
    events: list[Event] = []
    for number, line in enumerate(TRACE.read_text().splitlines()[:4000]):
        row = json.loads(line)
        chunks = row["hash_ids"]
        requested, could = requested + len(chunks), could + sum(chunk in seen for chunk in chunks)
        seen.update(chunks)
        events += lookup(f"r{number}", chunks)
        if len(events) >= 100:
            tell(ceiling, events, NOW + row["timestamp"] / 1000)
            events = []
    tell(ceiling, events, NOW + 3600)
    assert of(ceiling, now=NOW + 3600).ceiling == pytest.approx(could / requested, abs=0.01)
    assert of(ceiling, "", now=NOW + 3600).ceiling == pytest.approx(could / requested, abs=0.02)
