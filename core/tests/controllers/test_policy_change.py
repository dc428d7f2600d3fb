"""One eviction policy follows another while the cache is in use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from lmcache_core.builtin.lru import open_lru
from lmcache_core.contracts.policies import AccessFacts, EvictionDemand, EvictionPolicy, InsertFacts, RequestFacts
from lmcache_core.controllers import policy_guard
from lmcache_core.controllers.eviction import EvictionController
from lmcache_core.l1.arena import anonymous_arena
from lmcache_core.l1.cache import L1Cache
from lmcache_core.l1.leases import Owner, OwnerKind
from lmcache_core.model.keys import HashChain, KeySpace
from lmcache_devkit.event_recorder import EventRecorder
from lmcache_devkit.l1_audit import audit

SPACE = KeySpace("m", 1, 0, "", 16, HashChain.BLAKE3, bytes(16))
PAYLOAD = 4096
OWNER = Owner(OwnerKind.WORKER, 1)


def name(number: int) -> bytes:
    return number.to_bytes(32, "little")


class Recording(EvictionPolicy):
    """Records its calls, and evicts nothing."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[int]]] = []
        self.facts: list[InsertFacts] = []

    def on_insert(self, slots: Sequence[int], facts: InsertFacts) -> None:
        self.calls.append(("insert", list(slots)))
        self.facts.append(facts)

    def on_access(self, slots: Sequence[int], facts: AccessFacts) -> None:
        self.calls.append(("access", list(slots)))

    def on_remove(self, slots: Sequence[int]) -> None:
        self.calls.append(("remove", list(slots)))

    def victims(self, demand: EvictionDemand, may_evict: Callable[[int], bool]) -> Sequence[int]:
        return ()


class Broken(Recording):
    """Raises in every call."""

    def on_insert(self, slots: Sequence[int], facts: InsertFacts) -> None:
        raise RuntimeError("injected")

    def victims(self, demand: EvictionDemand, may_evict: Callable[[int], bool]) -> Sequence[int]:
        raise RuntimeError("injected")


class Bench:
    def __init__(self, policy: EvictionPolicy, slots: int = 64) -> None:
        self.arena = anonymous_arena(2 * PAYLOAD * slots)
        self.cache = L1Cache(self.arena, 4096)
        self.eviction = EvictionController(self.cache, policy, 1.0, 0.5, EventRecorder())
        self.slots: dict[int, int] = {}

    def put(self, *numbers: int) -> None:
        for number in numbers:
            record = self.cache.intern(SPACE, PAYLOAD)
            lease, _ = self.cache.reserve(OWNER, record, [name(number)], None)
            (self.slots[number],) = lease.slots
            assert self.cache.publish(lease, list(lease.slots))

    def hit(self, *numbers: int) -> None:
        self.cache.log_access([self.slots[number] for number in numbers], AccessFacts(0, RequestFacts()))

    def drop(self, *numbers: int) -> None:
        self.cache.evict([self.slots[number] for number in numbers])

    def order(self) -> list[int]:
        """Numbers of what is there, as the policy would evict them."""
        by_slot = {slot: number for number, slot in self.slots.items()}
        victims = self.eviction.guarded.policy.victims(EvictionDemand(1 << 40, {}), self.cache.may_evict)
        return [by_slot[slot] for slot in victims]

    def close(self) -> None:
        audit(self.cache)
        self.eviction._wakes.close()
        self.arena.close()


@pytest.fixture
def open_bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Bench]]:
    """Policies are notified of two slots at once."""
    monkeypatch.setattr(policy_guard, "STEP_SLOTS", 2)
    monkeypatch.setattr(policy_guard, "_SLICE", 2)
    benches: list[Bench] = []

    def open_it(policy: EvictionPolicy | None = None) -> Bench:
        benches.append(Bench(policy or open_lru(None)))
        return benches[-1]

    yield open_it
    for bench in benches:
        bench.close()


def go_on(bench: Bench, cycles: int = 50) -> None:
    for _ in range(cycles):
        if not bench.eviction.changing:
            return
        bench.eviction.cycle()
    raise AssertionError("the change does not come to its end")


def test_the_order_of_the_old_policy_is_kept(open_bench: Callable[..., Bench]) -> None:
    bench = open_bench()
    bench.put(*range(8))
    bench.eviction.cycle()
    bench.hit(2)
    bench.hit(0)
    change = bench.eviction.change_policy(open_lru(None))
    assert not change.wait(0)
    go_on(bench)
    assert (change.wait(0), change.failed) == (True, False)
    assert bench.eviction.guarded.policy is change.policy
    assert bench.order() == [1, 3, 4, 5, 6, 7, 2, 0]


def test_what_happens_meanwhile_comes_behind_it(open_bench: Callable[..., Bench]) -> None:
    bench = open_bench()
    bench.put(*range(8))
    bench.eviction.change_policy(open_lru(None))
    bench.eviction.cycle()
    bench.eviction.cycle()
    bench.put(8)
    bench.hit(1)
    bench.drop(0, 5)
    bench.eviction.cycle()
    bench.put(9, 10)  # they take the slots that 0 and 5 had
    assert {bench.slots[9], bench.slots[10]} == {bench.slots.pop(0), bench.slots.pop(5)}
    go_on(bench)
    bench.eviction.cycle()
    assert bench.order() == [2, 3, 4, 6, 7, 8, 1, 9, 10]


def test_the_old_policy_evicts_until_the_new_one_knows_everything(open_bench: Callable[..., Bench]) -> None:
    bench = open_bench()
    bench.put(*range(8))
    bench.eviction.change_policy(Recording())
    bench.eviction.cycle()
    bench.eviction.limit(0.1, 0.5)
    bench.eviction.cycle()
    assert bench.eviction.changing
    assert bench.cache.evicted == 4
    go_on(bench)
    bench.eviction.cycle()
    assert bench.cache.evicted >= 4


def test_places_in_prompts_are_not_made_up(open_bench: Callable[..., Bench]) -> None:
    bench, policy = open_bench(), Recording()
    bench.put(*range(3))
    bench.eviction.change_policy(policy)
    go_on(bench)
    assert policy.calls == [("insert", [bench.slots[number]]) for number in range(3)]
    record = bench.cache.intern(SPACE, PAYLOAD)
    assert [facts.keys for facts in policy.facts] == [(record.prefix + name(number),) for number in range(3)]
    assert {(facts.first_chunk, facts.slot_bytes, facts.space) for facts in policy.facts} == {(0, 2 * PAYLOAD, SPACE)}


def test_a_temporary_object_is_not_reported_to_the_policy(open_bench: Callable[..., Bench]) -> None:
    bench, policy = open_bench(), Recording()
    bench.put(0)
    record = bench.cache.intern(SPACE, PAYLOAD)
    reader = bench.cache.leases.open(OWNER, None)
    passing, _ = bench.cache.reserve(OWNER, record, [name(1)], None)
    bench.cache.publish(passing, list(passing.slots), [reader], temporary=True)
    bench.cache.reserve(OWNER, record, [name(2)], None)  # being written
    bench.eviction.change_policy(policy)
    go_on(bench)
    assert policy.calls == [("insert", [bench.slots[0]])]


def test_a_policy_that_cannot_learn_is_not_taken(open_bench: Callable[..., Bench]) -> None:
    bench = open_bench()
    before = bench.eviction.guarded.policy
    bench.put(*range(4))
    change = bench.eviction.change_policy(Broken())
    go_on(bench)
    assert (change.failed, bench.eviction.guarded.policy) == (True, before)
    assert bench.order() == [0, 1, 2, 3]


def test_a_policy_that_fails_can_be_replaced(open_bench: Callable[..., Bench]) -> None:
    bench = open_bench(Broken())
    bench.put(*range(4))
    bench.eviction.change_policy(open_lru(None))
    go_on(bench)
    assert sorted(bench.order()) == [0, 1, 2, 3]


def test_a_policy_that_keeps_everything_hands_it_over(open_bench: Callable[..., Bench]) -> None:
    bench = open_bench(Recording())
    bench.put(*range(4))
    bench.eviction.change_policy(open_lru(None))
    go_on(bench)
    assert sorted(bench.order()) == [0, 1, 2, 3]


def test_limits_change(open_bench: Callable[..., Bench]) -> None:
    bench = open_bench()
    bench.put(*range(8))
    bench.eviction.cycle()
    assert bench.cache.evicted == 0
    bench.eviction.limit(0.05, 0.25)
    bench.eviction.cycle()
    assert bench.cache.evicted == 2


class Babbling(Recording):
    """Names what is not a slot."""

    def victims(self, demand: EvictionDemand, may_evict: Callable[[int], bool]) -> Sequence[int]:
        return ["x", None, -1, 1 << 40]  # type: ignore[list-item]


def test_a_policy_that_babbles_can_be_replaced(open_bench: Callable[..., Bench]) -> None:
    bench = open_bench(Babbling())
    bench.put(*range(4))
    change = bench.eviction.change_policy(open_lru(None))
    go_on(bench)
    assert not change.failed
    assert sorted(bench.order()) == [0, 1, 2, 3]
