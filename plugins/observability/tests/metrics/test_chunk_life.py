"""Lives of chunks, followed for all of them where the sample is all."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from lmcache_observability.metrics import chunk_life
from lmcache_observability.metrics.chunk_kinds import (
    EVICT_REUSE_GAP,
    IDLE,
    LIFETIME,
    REAL_REUSE_GAP,
    REAL_REUSE_GAP_OBJECTS,
    REUSE_GAP,
)
from lmcache_observability.metrics.chunk_life import ChunkLife
from lmcache_observability.metrics.hash_batch import HashBatch, HashesEvent, sample_number
from lmcache_observability.metrics.label_names import LabelNames
from lmcache_observability.metrics.metric_kind import MetricKind
from plugins.observability.tests.metrics.events import asked, came, chunk_hash, left, read


def opened(rate: float = 1.0) -> ChunkLife:
    return ChunkLife(LabelNames(10, "plain"), rate)


def take(life: ChunkLife, *events: HashesEvent, at_once: bool = True) -> None:
    for batch in [events] if at_once else [[event] for event in events]:
        life.take(HashBatch(batch))


def samples_of(life: ChunkLife, kind: MetricKind) -> tuple[int, float]:
    """How many were measured, and their sum."""
    (family,) = [family for family in life.families() if family.kind is kind]
    found = [distribution for _, distribution in family.distributions]
    return sum(sum(each.counts) for each in found), sum(each.sum for each in found)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_chunk_s_life(at_once: bool) -> None:
    life = opened()
    take(
        life,
        came([1, 2], at=100.0),
        read([1], at=110.0),
        read([1, 2], at=130.0),
        left([1], at=150.0),
        came([1], at=200.0),
        left([1, 2], at=201.0),
        at_once=at_once,
    )
    assert samples_of(life, REUSE_GAP) == (3, 10.0 + 20.0 + 30.0)
    assert samples_of(life, LIFETIME) == (3, 50.0 + 1.0 + 101.0)
    assert samples_of(life, IDLE) == (3, 20.0 + 1.0 + 71.0)
    assert samples_of(life, EVICT_REUSE_GAP) == (1, 50.0)


def test_shards_of_a_chunk_live_for_themselves() -> None:
    life = opened()
    take(life, came([1], at=0.0, rank=0), came([1], at=10.0, rank=1), left([1], at=20.0, rank=1))
    assert samples_of(life, LIFETIME) == (1, 10.0)


@pytest.mark.parametrize("reason", ["cleared", "passing"])
def test_what_left_for_another_reason_than_room_was_not_evicted(reason: str) -> None:
    life = opened()
    take(life, came([1], at=0.0), left([1], reason, at=20.0), came([1], at=30.0))
    assert samples_of(life, LIFETIME) == samples_of(life, EVICT_REUSE_GAP) == (0, 0.0)


def test_what_is_asked_for_again_whether_it_was_there_or_not() -> None:
    life = opened()
    take(life, asked("a", [1, 2], at=10.0), came(range(100, 140)), asked("b", [1, 3], at=25.0))
    assert samples_of(life, REAL_REUSE_GAP) == (1, 15.0)
    assert samples_of(life, REAL_REUSE_GAP_OBJECTS) == (1, 40.0)


def test_what_came_before_the_start_is_not_followed() -> None:
    life = opened()
    take(life, read([1]), left([1]))
    assert all(not family.distributions for family in life.families())


def test_a_clock_that_goes_back_makes_no_negative_time() -> None:
    life = opened()
    take(life, came([1], at=100.0), read([1], at=50.0), left([1], at=20.0))
    assert samples_of(life, LIFETIME) == samples_of(life, REUSE_GAP) == (1, 0.0)


def test_a_torn_hash_does_not_move_the_others() -> None:
    life = opened()
    torn = msgspec.structs.replace(came([1]), chunk_hashes=came([1]).chunk_hashes + b"x")
    take(life, came([7], at=0.0), torn, left([7], at=9.0))
    assert samples_of(life, LIFETIME) == (1, 9.0)


def test_the_sample_is_the_share_that_was_asked_for() -> None:
    life = opened(0.1)
    take(life, came(range(5000), at=0.0), left(range(5000), at=1.0))
    count, _ = samples_of(life, LIFETIME)
    chosen = sum(sample_number(chunk_hash(number)) < 0.1 * 2**64 for number in range(5000))
    assert count == chosen
    assert 400 < count < 600


def test_beyond_the_limit_the_sample_is_halved_and_what_is_left_of_it_is_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chunk_life, "FOLLOWED_MAX", 200)
    life, rounds = opened(), 8
    for number in range(rounds):
        take(life, came(chunks(number), at=number), at_once=False)
    assert len(life._in_l1) <= 200
    followed = len(life._in_l1)
    take(life, *(left(chunks(number), at=100.0) for number in range(rounds)))
    assert samples_of(life, LIFETIME)[0] == followed > 50
    take(life, *(asked(f"r{number}", chunks(number)) for number in range(rounds)))
    assert len(life._left) <= 200
    assert len(life._asked) <= 200


def chunks(number: int) -> Sequence[int]:
    return range(number * 100, number * 100 + 100)
