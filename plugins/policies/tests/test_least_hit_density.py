"""What the policy learns, which end of which list it takes, and when it stops trusting itself."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterable, Sequence

import pytest

from lmcache_core import AccessFacts, EvictionDemand, EvictionPolicy, InsertFacts, RequestFacts
from lmcache_devkit.policy_model import SMALL, line_budget, space_of
from lmcache_policies.eviction.hit_density import BUCKETS, Table
from lmcache_policies.eviction.least_hit_density import ASKED, LAST, NEW, LeastHitDensity, open_least_hit_density
from lmcache_policies.eviction.reuse_monitor import ReuseMonitor

FADING = [1.0 / (1 + bucket) for bucket in range(BUCKETS)]
COMING_BACK = [2.0**bucket for bucket in range(BUCKETS)]
FLAT = [1.0] * BUCKETS
HOPELESS = [0.0] * BUCKETS


class Known(ReuseMonitor):
    """Fixed densities, and a record of the calls."""

    def __init__(self, densities: Sequence[Table] | None = None, trusted: bool = True) -> None:
        super().__init__(kinds=3)
        self.densities = densities
        self.is_trusted = trusted
        self.calls: list[tuple[int, bool]] = []

    @property
    def trusted(self) -> bool:
        return self.is_trusted

    def tell(self, word: int, kind: int, now: float, served: bool, resident: int) -> None:
        self.calls.append((kind, served))


class Cache:
    """Prompts in slots: everything that is missing is stored, and what is over `capacity` goes."""

    def __init__(self, capacity: int, policy: EvictionPolicy) -> None:
        self.capacity = capacity
        self.policy = policy
        self.slot_of: dict[int, int] = {}
        self.block_of: dict[int, int] = {}
        self.free = list(range(capacity + 64))
        self.requests = 0
        self.gone: list[int] = []

    def ask(self, prompt: Sequence[int], seconds: float | None = None) -> int:
        """Returns the hits."""
        self.requests += 1
        hits = next((i for i, block in enumerate(prompt) if block not in self.slot_of), len(prompt))
        now = float(self.requests) if seconds is None else seconds
        facts = RequestFacts(now, self.requests, len(prompt), hits)
        self.policy.on_access([self.slot_of[block] for block in prompt[:hits]], AccessFacts(0, facts))
        missing = [block for block in prompt[hits:] if block not in self.slot_of]
        slots = [self.free.pop() for _ in missing]
        self.slot_of.update(zip(missing, slots, strict=True))
        self.block_of.update(zip(slots, missing, strict=True))
        self.policy.on_insert(slots, InsertFacts(SMALL, space_of(""), hits, [key(block) for block in missing], facts))
        if (over := len(self.slot_of) - self.capacity) > 0:
            victims = self.policy.victims(EvictionDemand(over * SMALL, {}), self.block_of.__contains__)
            for slot in victims:
                block = self.block_of.pop(slot)
                del self.slot_of[block]
                self.gone.append(block)
            self.policy.on_remove(victims)
            self.free.extend(victims)
        return hits


def key(block: int) -> bytes:
    return block.to_bytes(16, "little")


def policy_with(densities: Sequence[Table] | None, trusted: bool = True) -> LeastHitDensity:
    return LeastHitDensity(Known(densities, trusted))


def store(
    policy: EvictionPolicy, slots: Iterable[int], seconds: float, first_chunk: int = 0, prompt_chunks: int = 0
) -> None:
    """Each slot gets an object whose key is the slot's number."""
    slots = list(slots)
    request = RequestFacts(seconds, 1 + int(seconds), prompt_chunks)
    policy.on_insert(slots, InsertFacts(SMALL, space_of(""), first_chunk, [key(slot) for slot in slots], request))


def hit(policy: EvictionPolicy, slots: Sequence[int], seconds: float) -> None:
    policy.on_access(slots, AccessFacts(0, RequestFacts(seconds, 1 + int(seconds), len(slots), len(slots))))


def order(policy: EvictionPolicy, held: Iterable[int] = ()) -> list[int]:
    """Everything, as it would go."""
    refused = set(held)
    return list(policy.victims(EvictionDemand(10**12, {}), lambda slot: slot not in refused))


# Which end.


def test_where_interest_fades_the_oldest_goes_first() -> None:
    policy = policy_with([FADING] * 3)
    for second in range(5):
        store(policy, [second], float(10 * second))
    assert order(policy) == [0, 1, 2, 3, 4]


def test_where_objects_come_back_late_the_newest_goes_first() -> None:
    policy = policy_with([COMING_BACK] * 3)
    for slot in range(5):
        store(policy, [slot], 2000 - 4.0 ** (5 - slot))
    assert order(policy) == [4, 3, 2, 1, 0]


def test_a_small_difference_is_not_a_reason_to_take_the_newest() -> None:
    policy = policy_with([[1.0 + 0.001 * bucket for bucket in range(BUCKETS)]] * 3)
    for second in range(5):
        store(policy, [second], 4.0**second)
    assert order(policy) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("table", [FADING, COMING_BACK])
def test_from_both_ends_the_end_of_a_prompt_goes_first(table: Table) -> None:
    policy = policy_with([table] * 3)
    store(policy, [0, 1, 2], 0.0)
    store(policy, [3, 4, 5], 1000.0)
    early, late = [2, 1, 0], [5, 4, 3]
    assert order(policy) == (early + late if table is FADING else late + early)


def test_held_slots_are_passed_over_at_both_ends() -> None:
    policy = policy_with([COMING_BACK] * 3)
    for slot in range(6):
        store(policy, [slot], 2000 - 4.0 ** (5 - slot))
    assert order(policy, held=[0, 5, 3]) == [4, 2, 1]


# Kinds.


def test_kinds_are_distinguished_by_what_was_asked_before_and_by_the_end_of_the_prompt() -> None:
    monitor = Known()
    policy = LeastHitDensity(monitor)
    store(policy, [0, 1, 2], 0.0, prompt_chunks=3)
    policy.on_remove([0, 1, 2])
    store(policy, [0, 1, 7, 8], 1.0, prompt_chunks=4)
    hit(policy, [0, 8], 2.0)
    served = [(LAST, False), (NEW, False), (NEW, False)]
    again = [(LAST, False), (NEW, False), (ASKED, False), (ASKED, False)]
    assert monitor.calls == served + again + [(ASKED, True), (ASKED, True)]


def test_the_last_chunk_is_found_when_a_prompt_is_stored_in_several_batches() -> None:
    monitor = Known()
    policy = LeastHitDensity(monitor)
    store(policy, [0, 1], 0.0, first_chunk=0, prompt_chunks=4)
    store(policy, [2, 3], 0.0, first_chunk=2, prompt_chunks=4)
    store(policy, [4, 5], 1.0, first_chunk=0, prompt_chunks=0)
    kinds = [kind for kind, _ in monitor.calls]
    assert kinds == [NEW, NEW, LAST, NEW, NEW, NEW]


def test_the_kind_that_is_worth_least_goes_first_whatever_its_age() -> None:
    policy = policy_with([HOPELESS, FLAT, COMING_BACK])
    store(policy, [0, 1, 2], 0.0, prompt_chunks=3)
    store(policy, [3, 4, 5], 50.0, prompt_chunks=3)
    hit(policy, [0, 3], 60.0)
    assert order(policy)[:4] == [2, 5, 1, 4]


def test_a_hit_makes_an_object_one_that_was_asked_for() -> None:
    policy = policy_with([HOPELESS, HOPELESS, FLAT])
    store(policy, [0, 1], 0.0)
    hit(policy, [0], 10.0)
    store(policy, [2], 20.0)
    assert order(policy) == [1, 2, 0]


def test_behind_a_chunk_that_is_new_nothing_was_asked_for() -> None:
    monitor = Known()
    policy = LeastHitDensity(monitor)
    store(policy, [0], 0.0)
    policy.on_remove([0])
    store(policy, [9, 0], 1.0)
    assert monitor.calls == [(NEW, False)] * 3


def test_without_keys_the_order_is_least_recently_used() -> None:
    policy = open_least_hit_density(None)
    for slot in range(5):
        policy.on_insert([slot], InsertFacts(SMALL, space_of(""), 0))
    policy.on_access([1], AccessFacts())
    assert order(policy) == [0, 2, 3, 4, 1]


# What is learned.


def test_a_loop_longer_than_the_cache_is_hit_where_least_recently_used_hits_nothing() -> None:
    cache = Cache(100, open_least_hit_density(None))
    hits = [cache.ask([at % 400]) for at in range(8000)]
    assert sum(hits[4000:]) > 0.15 * 4000  # the most there can be is a quarter


def test_what_was_asked_before_outlives_what_was_not_although_it_was_evicted() -> None:
    cache = Cache(200, open_least_hit_density(None))
    hits = []
    for at in range(12_000):
        cache.ask([10**6 + 2 * at, 10**6 + 2 * at + 1])
        if at % 3 == 0:  # again after 480 requests: too late for least recently used
            hits.append(cache.ask([at // 3 % 120, 10**7 + at]))
    assert sum(hits[2000:]) > 0.9 * 2000


def test_the_same_history_has_the_same_victims() -> None:
    def history() -> list[int]:
        rng, cache = random.Random(4), Cache(150, open_least_hit_density(None))
        for _ in range(4000):
            first = rng.randrange(60) * 100
            cache.ask(range(first, first + rng.randint(1, 8)))
        return cache.gone

    assert history() == history()


@pytest.mark.parametrize(
    "clock", [lambda n: 0.0, lambda n: -float(n), lambda n: 1e300 * (n % 3), lambda n: 2.0**n % 1e9]
)
def test_any_clock_will_do(clock) -> None:  # type: ignore[no-untyped-def]
    rng, cache = random.Random(5), Cache(100, open_least_hit_density(None))
    for at in range(3000):
        first = rng.randrange(50) * 100
        cache.ask(range(first, first + rng.randint(1, 6)), clock(at % 900))
        assert len(cache.slot_of) <= cache.capacity


def test_no_call_pays_for_a_lesson() -> None:
    """The ring has thousands of entries, several lines for each; a request looks at a few, and the last one of a lesson
    makes tables of a fixed size."""
    policy = open_least_hit_density(None)
    dearest = 0
    for at in range(12_000):
        with line_budget(10_000) as left:
            store(policy, [at], float(at))
        dearest = max(dearest, 10_000 - left[0])
    assert dearest < 7_000


# Whom to trust.


def test_without_trust_the_order_is_least_recently_used() -> None:
    monitor = Known([COMING_BACK] * 3, trusted=False)
    policy = LeastHitDensity(monitor)
    for second in range(4):
        store(policy, [second], 4.0**second)
    hit(policy, [1], 300.0)
    assert order(policy) == [0, 2, 3, 1]
    monitor.is_trusted = True
    assert order(policy)[0] == 1


def test_working_sets_that_change_cost_little_against_least_recently_used() -> None:
    rng, cache, lru = random.Random(6), Cache(500, open_least_hit_density(None)), OrderedDict[int, None]()
    ours = theirs = 0
    for at in range(30_000):
        block = at // 3000 * 400 + rng.randrange(400)
        ours += cache.ask([block])
        theirs += block in lru
        lru[block] = None
        lru.move_to_end(block)
        if len(lru) > 500:
            lru.popitem(last=False)
    assert ours > 0.98 * theirs
