"""The parts of LeastHitDensity: densities by age, the judge, and what remembers keys."""

from __future__ import annotations

import random
from collections import OrderedDict
from math import inf, nan

import pytest

from lmcache_policies.eviction.hit_density import BUCKETS, Table, age_bucket, hit_densities
from lmcache_policies.eviction.order_judge import OrderJudge
from lmcache_policies.eviction.recent_keys import RecentKeys
from lmcache_policies.eviction.watched_keys import WatchedKeys


def counts(**at: float) -> Table:
    table = [0.0] * BUCKETS
    for seconds, count in at.items():
        table[age_bucket(float(seconds.removeprefix("s")))] = count
    return table


def test_densities_fall_where_reuse_is_soon_and_rise_where_it_is_late() -> None:
    soon, late = counts(s2=90), counts(s1000=90)
    (fading,) = hit_densities([soon], [counts(s5000=10)], 0)
    assert fading[age_bucket(1.0)] > 100 * fading[age_bucket(100.0)]
    (rising,) = hit_densities([late], [counts(s5000=10)], 0)
    assert rising[age_bucket(1.0)] < rising[age_bucket(500.0)] / 1.5
    assert rising[age_bucket(1.0)] == pytest.approx(90 / 90_000, rel=0.4)  # one hit in about 1000 s each


def test_the_beginning_of_a_prompt_is_never_worth_less_than_its_end() -> None:
    lower, upper = hit_densities([counts(s8=1000), counts(s8=10)], [counts(s64=1), counts(s64=1000)], 0)
    assert all(above >= below for below, above in zip(lower, upper, strict=True))
    assert upper[age_bucket(8.0)] > 0


def test_ages_of_zero_and_ages_beyond_all_have_a_bucket() -> None:
    assert [age_bucket(age) for age in (-1e300, 0.0, 1e-9, nan)] == [0, 0, 0, 0]
    assert age_bucket(1e300) == BUCKETS - 1
    assert 0 <= age_bucket(inf) < BUCKETS
    assert [age_bucket(2.0**power * 1.01) for power in range(5)] == [16, 18, 20, 22, 24]


def judged(judge: OrderJudge, ours: bool, shadow: bool, requests: int) -> bool:
    for _ in range(requests):
        judge.tell(ours, shadow)
    return judge.trusted


def until(judge: OrderJudge, trusted: bool, ours: bool, shadow: bool) -> int:
    """Requests until it thinks so."""
    for requests in range(200_000):
        if judge.trusted == trusted:
            return requests
        judge.tell(ours, shadow)
    raise AssertionError("it never does")


def test_an_order_is_trusted_until_the_other_one_is_seen_to_be_better() -> None:
    judge = OrderJudge()
    assert judge.trusted
    assert judged(judge, ours=True, shadow=True, requests=1000)
    assert judged(judge, ours=False, shadow=False, requests=1000)
    assert judged(judge, ours=True, shadow=False, requests=1000)
    assert not judged(judge, ours=False, shadow=True, requests=1000)


def test_chance_does_not_shake_the_trust() -> None:
    judge = OrderJudge()
    for at in range(10_000):
        judge.tell(ours=at % 48 < 24, shadow=at % 48 >= 24)
        assert judge.trusted


def test_each_pause_is_longer_and_then_it_is_tried_again() -> None:
    judge, pauses = OrderJudge(), []
    for _ in range(4):
        until(judge, False, ours=False, shadow=True)
        pauses.append(until(judge, True, ours=True, shadow=True))
    assert pauses == sorted(pauses)
    assert pauses[3] > 6 * pauses[0]


def test_recent_keys_remember_a_while_and_take_few_for_others() -> None:
    rng, recent = random.Random(7), RecentKeys()
    words = [rng.getrandbits(64) for _ in range(100_000)]
    false = sum(recent.meet(word, 1000) for word in words)
    assert false < 600
    assert all(recent.meet(word, 1000) for word in words[-4000:])
    assert sum(recent.meet(word, 1000) for word in words[:4000]) < 100


def test_the_shadow_is_a_least_recently_used_cache_of_the_watched_keys() -> None:
    rng, watched = random.Random(8), WatchedKeys(64)
    model: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for at in range(5000):
        word = 1 + min(int(rng.expovariate(0.03)), 500)
        shadow_max = 20 if at < 2500 else 30
        shadowed = False
        if (place := watched.find(word)) >= 0:
            shadowed = watched.kill(place)
        if (place := watched.reach()) >= 0:
            watched.kill(place)
        watched.add(word, 0, float(at), shadow_max)
        # What is overwritten before it is asked for again is lost to the shadow, too: the ring is long enough here.
        assert shadowed == (word in model)
        hits += shadowed
        model[word] = None
        model.move_to_end(word)
        if len(model) > shadow_max:
            model.popitem(last=False)
    assert 1000 < hits < 4000


def test_a_ring_that_grows_forgets_nothing() -> None:
    watched = WatchedKeys(16)
    for at in range(16):
        assert watched.grow() is False or at == 0
        watched.add(100 + at, at % 3, float(at), 8)
    assert watched.grow()
    assert [watched.read(watched.find(100 + at)) for at in range(16)] == [(float(at), at % 3) for at in range(16)]
    assert watched.reach() == -1
    assert len(watched.live(0, watched.size)) == 16
