"""Room is made by the policy's word, and a policy that fails costs no more than its word."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from lmcache_core.builtin.lru import open_lru
from lmcache_core.contracts.events import ChunksEvicted
from lmcache_core.contracts.policies import AccessFacts, EvictionDemand, EvictionPolicy, InsertFacts
from lmcache_core.controllers.eviction import EvictionController
from lmcache_core.kernels.choice import Kernels
from lmcache_core.l1.arena import Arena, anonymous_arena
from lmcache_core.l1.cache import L1Cache
from lmcache_core.l1.leases import Owner, OwnerKind
from lmcache_core.model.keys import HashChain, KeySpace
from lmcache_devkit.event_recorder import EventRecorder
from lmcache_devkit.l1_audit import audit

PAYLOAD, SLOTS = 4096, 100
WORKER = Owner(OwnerKind.WORKER, 1)


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = anonymous_arena(2 * PAYLOAD * SLOTS)
    yield arena
    arena.close()


@pytest.fixture
def cache(arena: Arena, kernels: Kernels) -> L1Cache:
    return L1Cache(arena, 4096, kernels)


def store(cache: L1Cache, *numbers: int) -> list[int]:
    record = cache.intern(KeySpace("m", 1, 0, "", 16, HashChain.BLAKE3, bytes(16)), PAYLOAD)
    lease, _ = cache.reserve(WORKER, record, [number.to_bytes(32, "big") for number in numbers], None)
    slots = list(lease.slots)
    cache.publish(lease, slots)
    return slots


def controller(cache: L1Cache, policy: EvictionPolicy) -> tuple[EvictionController, EventRecorder]:
    events = EventRecorder()
    return EvictionController(cache, policy, 0.8, 0.2, events), events


def test_nothing_leaves_below_the_watermark(cache: L1Cache) -> None:
    evictor, events = controller(cache, open_lru(None))
    store(cache, *range(80))
    evictor.cycle()
    assert cache.objects == 80
    assert not events.events


def test_a_fifth_of_what_is_used_leaves_above_it_oldest_first(cache: L1Cache) -> None:
    evictor, events = controller(cache, open_lru(None))
    for number in range(90):
        store(cache, number)
    evictor.cycle()
    assert cache.objects == 72
    assert sum(event.chunks for event in events.of(ChunksEvicted)) == 18
    assert cache.reserve(
        WORKER,
        cache.intern(KeySpace("m", 1, 0, "", 16, HashChain.BLAKE3, bytes(16)), PAYLOAD),
        [bytes(31) + b"\x00"],
        None,
    )[1] == [0]


def test_a_store_that_found_no_room_gets_some(cache: L1Cache) -> None:
    evictor, _ = controller(cache, open_lru(None))
    store(cache, *range(SLOTS))
    assert store(cache, 1000, 1001, 1002) == []
    evictor.cycle()
    assert len(store(cache, 1000, 1001, 1002)) == 3


class ScriptedPolicy(EvictionPolicy):
    """Fails on cue, and is an LRU otherwise."""

    def __init__(self) -> None:
        self.failing = ""
        self._lru = open_lru(None)

    def _do(self, name: str, call: Callable[[], None]) -> None:
        if self.failing == name:
            raise RuntimeError(name)
        call()

    def on_insert(self, slots: Sequence[int], facts: InsertFacts) -> None:
        self._do("insert", lambda: self._lru.on_insert(slots, facts))

    def on_access(self, slots: Sequence[int], facts: AccessFacts) -> None:
        self._do("access", lambda: self._lru.on_access(slots, facts))

    def on_remove(self, slots: Sequence[int]) -> None:
        self._do("remove", lambda: self._lru.on_remove(slots))

    def victims(self, demand: EvictionDemand, may_evict: Callable[[int], bool]) -> Sequence[int]:
        if self.failing == "victims":
            raise RuntimeError("victims")
        return self._lru.victims(demand, may_evict)


@pytest.mark.parametrize("failing", ["access", "victims"])
def test_a_policy_that_fails_once_is_asked_again_and_knows_the_rest(cache: L1Cache, failing: str) -> None:
    policy = ScriptedPolicy()
    evictor, _ = controller(cache, policy)
    store(cache, *range(45))
    lease = cache.leases.open(WORKER, None)
    record = cache.intern(KeySpace("m", 1, 0, "", 16, HashChain.BLAKE3, bytes(16)), PAYLOAD)
    cache.leases.acquire(lease, record, [(0).to_bytes(32, "big")])
    cache.leases.end(lease)
    store(cache, *range(45, 90))
    policy.failing = failing
    evictor.cycle()
    policy.failing = ""
    evictor.cycle()
    assert cache.objects <= 72


def test_victims_that_may_not_go_stay(cache: L1Cache) -> None:
    class Wild(ScriptedPolicy):
        def victims(self, demand: EvictionDemand, may_evict: Callable[[int], bool]) -> Sequence[int]:
            return [-5, 10**9, *range(200), *range(200)]

    evictor, _ = controller(cache, Wild())
    held = store(cache, *range(90))[:50]
    lease = cache.leases.open(WORKER, None)
    record = cache.intern(KeySpace("m", 1, 0, "", 16, HashChain.BLAKE3, bytes(16)), PAYLOAD)
    assert cache.leases.acquire(lease, record, [number.to_bytes(32, "big") for number in range(50)]) == held
    evictor.cycle()
    assert cache.objects == 50
    audit(cache)


class Watchful(ScriptedPolicy):
    """Lets a request hit what would leave next, as soon as the first victims have been named."""

    def __init__(self, hit: Callable[[], object]) -> None:
        super().__init__()
        self.asked = 0
        self._hit = hit

    def victims(self, demand: EvictionDemand, may_evict: Callable[[int], bool]) -> Sequence[int]:
        self.asked += 1
        named = super().victims(demand, may_evict)
        if self.asked == 1:
            self._hit()
        return named


def test_what_is_hit_while_others_leave_is_not_a_victim(cache: L1Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmcache_core.controllers.eviction.STEP_OBJECTS", 5)
    for number in range(90):
        store(cache, number)
    oldest = [
        slot for slot in range(90) if cache.key_of(slot).chunk_hash in {bytes(31) + bytes([n]) for n in range(5, 18)}
    ]
    policy = Watchful(lambda: cache.log_access(oldest, AccessFacts()))
    evictor, _ = controller(cache, policy)
    evictor.cycle()
    assert policy.asked == 4
    assert cache.objects == 72
    there = {cache.key_of(slot).chunk_hash[-1] for slot in range(90) if cache.may_evict(slot)}
    assert there >= set(range(5, 18))
    assert there.isdisjoint(range(5))


def test_a_store_that_comes_while_others_are_served_is_served_in_the_next_round(cache: L1Cache) -> None:
    store(cache, *range(SLOTS))
    assert store(cache, 1000) == []
    evictor, _ = controller(cache, Watchful(lambda: store(cache, *range(2000, 2100))))
    evictor.cycle()
    assert len(store(cache, *range(3000, 3100))) < 100
    evictor.cycle()
    assert len(store(cache, *range(4000, 4100))) == 100
