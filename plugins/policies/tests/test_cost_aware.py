"""`cost_aware` loads what pays, declines the rest, and notices when that changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_core import (
    AdapterFacts,
    Bitmap,
    Capability,
    LoadFacts,
    PrefetchFacts,
    PrefetchPlan,
    WantedObject,
)
from lmcache_devkit.prefetch_policy_suite import PrefetchPolicySuite
from lmcache_devkit.simulated_link import SimulatedLink
from lmcache_policies.prefetch.cost_aware import CostAware, CostAwareSettings, recompute_cost
from lmcache_policies.prefetch.tier_speed import TierSpeed

MB = 1_000_000
CHUNK_TOKENS = 256
CHUNK_BYTES = 32 * MB
SLICE, AT_ONCE = 32, 128
RATE = 10_000.0


class TestCostAware(PrefetchPolicySuite):
    offer = "cost_aware"

    @pytest.fixture
    def settings(self) -> Mapping[str, Any]:
        return {"prefill_tokens_per_second": RATE}


def adapters(count: int) -> list[AdapterFacts]:
    return [AdapterFacts(f"tier-{index}", Capability.NONE, True) for index in range(count)]


def facts(
    chunks: int,
    *,
    tiers: int = 1,
    shards: int = 1,
    first: int = 0,
    windows: Sequence[int | None] = (None,),
    sparse: bool = False,
    ordered: bool = False,
    loading_bytes: Sequence[int] = (),
) -> PrefetchFacts:
    wanted = [
        WantedObject(chunk, shard, CHUNK_BYTES) for shard in range(shards) for chunk in range(first, first + chunks)
    ]
    return PrefetchFacts(
        wanted,
        list(windows) * (shards // len(windows)),
        CHUNK_TOKENS,
        sparse,
        ordered,
        loading_bytes or (0,) * tiers,
        AT_ONCE,
    )


def taught(costs: Sequence[tuple[float, float]], **settings: float) -> CostAware:
    """A policy that has seen each tier answer with this latency and that number of bytes per second."""
    values = {"prefill_tokens_per_second": RATE, "exploration_share": 0.0, **settings}
    policy = CostAware(CostAwareSettings.model_validate(values))
    for tier, (latency, rate) in enumerate(costs):
        for size in (CHUNK_BYTES, 8 * CHUNK_BYTES, 32 * CHUNK_BYTES, 4 * CHUNK_BYTES):
            policy.on_load(LoadFacts(f"tier-{tier}", size, 0, size, latency + size / rate))
    return policy


def everything(chunks: int) -> Bitmap:
    return Bitmap(chunks, range(chunks))


def loaded(plan: PrefetchPlan) -> int:
    return sum(source is not None for source in plan.sources)


def test_a_tier_that_is_faster_than_computing_is_loaded_whole() -> None:
    policy = taught([(0.01, 5e9)])  # 32 MB in 6.4 ms; computing a chunk takes 25.6 ms
    plan = policy.weigh([everything(40)], adapters(1), facts(40))
    assert plan.sources == (0,) * 40
    assert plan.declined == (None,) * 40


def test_a_tier_that_is_slower_is_declined_and_named() -> None:
    policy = taught([(0.01, 0.5e9)])
    plan = policy.weigh([everything(40)], adapters(1), facts(40))
    assert plan.sources == (None,) * 40
    assert plan.declined == (0,) * 40


def test_a_latency_that_a_short_prefix_does_not_earn_back_is_declined() -> None:
    policy = taught([(0.5, 50e9)])
    assert loaded(policy.weigh([everything(10)], adapters(1), facts(10))) == 0  # 0.26 s of computing
    assert loaded(policy.weigh([everything(100)], adapters(1), facts(100))) == 100


def test_the_plan_is_cut_where_loading_stops_to_pay() -> None:
    policy = taught([(0.001, 10e9), (0.001, 0.3e9)])
    found = [Bitmap(40, range(24)), everything(40)]
    plan = policy.weigh(found, adapters(2), facts(40, tiers=2))
    assert plan.sources == (0,) * 24 + (None,) * 16
    assert plan.declined == (None,) * 24 + (1,) * 16


def test_the_faster_of_two_holders_is_asked() -> None:
    policy = taught([(0.001, 3e9), (0.001, 12e9)])
    assert policy.weigh([everything(8)] * 2, adapters(2), facts(8, tiers=2)).sources == (1,) * 8


def test_what_a_tier_is_loading_already_counts() -> None:
    policy = taught([(0.01, 5e9)])
    assert loaded(policy.weigh([everything(8)], adapters(1), facts(8))) == 8
    busy = facts(8, loading_bytes=[10_000 * MB])
    assert loaded(policy.weigh([everything(8)], adapters(1), busy)) == 0


def test_an_order_and_a_sparse_lookup_are_not_weighed() -> None:
    policy = taught([(0.01, 0.1e9)])
    assert loaded(policy.weigh([everything(8)], adapters(1), facts(8, ordered=True))) == 8
    assert loaded(policy.weigh([everything(8)], adapters(1), facts(8, sparse=True))) == 8


def test_nothing_behind_a_gap_counts() -> None:
    policy = taught([(0.1, 20e9)])
    found = Bitmap(40, [chunk for chunk in range(40) if chunk != 3])
    plan = policy.weigh([found], adapters(1), facts(40))
    assert plan.sources[:3] == (None,) * 3  # 77 ms of computing do not pay for the latency; the rest would not help
    assert plan.declined == (0,) * 3 + (None,) * 37


def test_a_window_needs_only_its_last_chunks() -> None:
    """Two shards of which one keeps 4 chunks: half of the bytes, and so the load pays."""
    policy = taught([(0.001, 2e9)])
    both = everything(80)
    assert loaded(policy.weigh([both], adapters(1), facts(40, shards=2, windows=(None, None)))) == 0
    assert loaded(policy.weigh([both], adapters(1), facts(40, shards=2, windows=(None, 4)))) == 80


def test_an_unknown_tier_is_probed_by_one_lookup_at_a_time() -> None:
    policy = CostAware(CostAwareSettings(prefill_tokens_per_second=RATE))
    assert loaded(policy.weigh([everything(40)], adapters(1), facts(40))) == 8
    assert loaded(policy.weigh([everything(40)], adapters(1), facts(40, loading_bytes=[CHUNK_BYTES]))) == 0


@given(st.data())
def test_whatever_it_has_seen_a_plan_is_valid(data: st.DataObject) -> None:
    tiers, chunks, shards = (data.draw(st.integers(1, most)) for most in (3, 12, 2))
    policy = CostAware(CostAwareSettings(prefill_tokens_per_second=RATE, minimum_samples=1, exploration_share=0.5))
    healths = data.draw(st.lists(st.booleans(), min_size=tiers, max_size=tiers))
    shown = [AdapterFacts(f"tier-{index}", Capability.NONE, healthy) for index, healthy in enumerate(healths)]
    known = facts(chunks, tiers=tiers, shards=shards, windows=data.draw(st.sampled_from([(None,), (3,)])))
    keys = chunks * shards
    for _ in range(data.draw(st.integers(1, 4))):
        tier, seconds = data.draw(st.integers(0, tiers - 1)), data.draw(st.floats(0, 20))
        asked = data.draw(st.integers(1, 40)) * CHUNK_BYTES
        policy.on_load(LoadFacts(f"tier-{tier}", asked, 0, data.draw(st.sampled_from([0, asked])), seconds))
        found = [Bitmap(keys, data.draw(st.sets(st.integers(0, keys - 1)))) for _ in range(tiers)]
        plan = policy.weigh(found, shown, known)
        assert len(plan.sources) == keys
        for key, source in enumerate(plan.sources):
            declined = plan.declined[key] if plan.declined else None
            assert source is None or declined is None
            for place in (source, declined):
                assert place is None or (healths[place] and key in found[place])


@given(st.lists(st.tuples(st.integers(1, 10**10), st.floats(0, 100)), min_size=3, max_size=40))
def test_a_fitted_cost_is_never_negative_and_grows_with_bytes(samples: list[tuple[int, float]]) -> None:
    speed = TierSpeed(3)
    for size, seconds in samples:
        speed.took(size, seconds)
    assert speed.cost is not None
    assert speed.cost.seconds >= 0
    assert 0 <= speed.cost.of(10**6) <= speed.cost.of(10**9)


@given(
    st.floats(1e-4, 1.0),
    st.floats(1e8, 1e11),
    st.lists(st.integers(10**6, 10**9), min_size=8, max_size=32, unique=True),
)
def test_latency_and_rate_are_found_again(latency: float, rate: float, sizes: list[int]) -> None:
    speed = TierSpeed(3)
    for size in sizes:
        speed.took(size, latency + size / rate)
    assert speed.cost is not None
    largest = max(sizes)
    truth = latency + largest / rate
    assert speed.cost.of(largest) == pytest.approx(truth, rel=0.5)


def test_a_quick_failure_is_not_a_sign_of_speed() -> None:
    speed = TierSpeed(1)
    speed.took(CHUNK_BYTES, 1.0)
    before = speed.cost
    speed.failed(CHUNK_BYTES, 0.001)
    assert speed.cost == before
    speed.failed(CHUNK_BYTES, 30.0)
    assert speed.cost is not None
    assert before is not None
    assert speed.cost.of(CHUNK_BYTES) > before.of(CHUNK_BYTES)


@dataclass
class Tier:
    """A backend behind a link: transfers pass one after the other, and each answer comes a latency later."""

    bytes_per_second: float
    latency: float
    link: SimulatedLink = field(init=False)

    def __post_init__(self) -> None:
        self.link = SimulatedLink(self.bytes_per_second)


class Engine:
    """Serves one prompt after the other, in simulated time, and adds up what the first tokens took."""

    def __init__(self, policy: CostAware) -> None:
        self.policy = policy
        self.now = 0.0
        self.seconds = 0.0
        self.computing = 0.0
        self.loaded = 0

    def serve(self, chunks: int, tier: Tier) -> float:
        plan = self.policy.weigh([everything(chunks)], adapters(1), facts(chunks))
        count = loaded(plan)
        assert plan.sources == (0,) * count + (None,) * (chunks - count)
        assert sum(place is not None for place in plan.declined) == chunks - count
        ended = self._load(count, tier)
        rest = compute(count, chunks)
        took = ended - self.now + rest
        self.now = ended + rest
        self.seconds += took
        self.computing += compute(0, chunks)
        self.loaded += count
        return took

    def _load(self, count: int, tier: Tier) -> float:
        under_way: list[tuple[float, int]] = []
        now = ended = self.now
        while count:
            if len(under_way) == AT_ONCE // SLICE:
                now = under_way.pop(0)[0]
            size = min(SLICE, count) * CHUNK_BYTES
            ahead = sum(each for _, each in under_way)
            ended = tier.link.book(size, now) + tier.latency
            self.policy.on_load(LoadFacts("tier-0", size, ahead, size, ended - now))
            under_way.append((ended, size))
            count -= min(SLICE, count)
        return ended


def compute(first: int, end: int) -> float:
    return recompute_cost(first * CHUNK_TOKENS, (end - first) * CHUNK_TOKENS) / RATE


@pytest.mark.parametrize("rate", [0.02e9, 0.2e9, 0.8e9, 1.2e9, 2e9, 20e9])
@pytest.mark.parametrize("latency", [0.0, 0.05, 1.0])
def test_first_tokens_are_never_later_than_computed_but_for_what_measuring_costs(rate: float, latency: float) -> None:
    settings = CostAwareSettings(prefill_tokens_per_second=RATE, safety_factor=1.2, exploration_share=0.02)
    engine, tier = Engine(CostAware(settings)), Tier(rate, latency)
    for number in range(300):
        engine.serve(8 + number * 7 % 90, tier)
    learning = settings.minimum_samples * (latency + 4 * settings.probe_chunks * CHUNK_BYTES / rate)
    once_more = 4 * settings.probe_chunks * CHUNK_BYTES / rate + latency  # a last look that the budget did not foresee
    assert engine.seconds <= engine.computing * (1 + settings.exploration_share) + learning + once_more


def test_a_fast_tier_is_used_and_one_that_becomes_slow_is_left_until_it_is_fast_again() -> None:
    engine = Engine(CostAware(CostAwareSettings(prefill_tokens_per_second=RATE)))
    fast, slow = Tier(10e9, 0.002), Tier(0.1e9, 0.002)
    for _ in range(30):
        engine.serve(60, fast)
    assert engine.seconds < engine.computing / 2
    for _ in range(6):
        engine.serve(60, slow)
    engine.seconds = engine.computing = 0.0
    for _ in range(2000):
        engine.serve(60, slow)
    assert engine.seconds <= engine.computing * 1.03
    for _ in range(2000):
        engine.serve(60, fast)
    assert engine.serve(60, fast) < compute(0, 60) / 2
