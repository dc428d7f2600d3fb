"""Quotas of cache salts, kept by the policies that can: no salt pays for another's excess."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from lmcache_core.contracts.events import QuotaChanged, QuotaReached
from lmcache_core.contracts.policies import EvictionDemand, EvictionPolicy
from lmcache_core.contracts.server_control import Quota, QuotaRefusedError
from lmcache_core.controllers.eviction import EvictionController
from lmcache_core.controllers.quota import Quotas
from lmcache_core.l1.arena import anonymous_arena
from lmcache_core.l1.cache import L1Cache
from lmcache_core.l1.leases import Lease, Owner, OwnerKind
from lmcache_core.model.keys import HashChain, KeySpace
from lmcache_core.storage.manager import reserve_with_wait
from lmcache_devkit.event_recorder import EventRecorder
from lmcache_devkit.l1_audit import audit
from lmcache_devkit.policy_model import LARGE, SALTS, SMALL, ModelledPolicy, space_of
from lmcache_policies.eviction.isolated_lru import open_isolated_lru
from lmcache_policies.eviction.least_hit_density import open_least_hit_density

OPENERS = [open_isolated_lru, open_least_hit_density]
PAYLOAD, SLOT, SLOTS = 4096, 8192, 128
WORKER = Owner(OwnerKind.WORKER, 1)


class EvictionHarness:
    """L1, its eviction and its quotas, without threads."""

    def __init__(self, policy: EvictionPolicy) -> None:
        self.arena = anonymous_arena(SLOTS * SLOT)
        self.cache = L1Cache(self.arena, 4096)
        self.events = EventRecorder()
        self.quotas = Quotas(self.cache, "the policy", policy.isolates_salts, self.events)
        self.evictor = EvictionController(self.cache, policy, 0.8, 0.2, self.events)

    def store(self, salt: str, *numbers: int) -> int:
        """How many of these chunks were given room."""
        record = self.cache.intern(KeySpace("m", 1, 0, salt, 16, HashChain.BLAKE3, bytes(16)), PAYLOAD)
        lease, _ = self.cache.reserve(WORKER, record, [number.to_bytes(32, "big") for number in numbers], None)
        slots = list(lease.slots)
        self.cache.publish(lease, slots)
        return len(slots)

    def read(self, salt: str, *numbers: int) -> Lease:
        record = self.cache.intern(KeySpace("m", 1, 0, salt, 16, HashChain.BLAKE3, bytes(16)), PAYLOAD)
        lease = self.cache.leases.open(WORKER, None)
        self.cache.leases.acquire(lease, record, [number.to_bytes(32, "big") for number in numbers])
        return lease

    def has(self, salt: str, *numbers: int) -> list[int]:
        """Those of these chunks that are there."""
        lease = self.read(salt, *numbers)
        there = sorted(int.from_bytes(self.cache.key_of(slot).chunk_hash, "big") for slot in lease.slots)
        self.cache.leases.end(lease)
        return there

    def used(self, salt: str) -> int:
        """In slots."""
        return self.quotas.get(salt).used_bytes // SLOT


@pytest.fixture(params=OPENERS)
def site(request: pytest.FixtureRequest) -> Iterator[EvictionHarness]:
    site = EvictionHarness(request.param(None))
    yield site
    audit(site.cache)
    site.arena.close()


def test_a_quota_that_is_lowered_is_kept_after_one_round_and_its_oldest_leave(site: EvictionHarness) -> None:
    for number in range(40):
        site.store("a", number)
        site.store("b", number)
    site.quotas.set("a", 32 * SLOT)
    site.evictor.cycle()
    assert site.has("a", *range(40)) == list(range(10, 40))
    assert site.used("b") == 40
    assert site.events.of(QuotaChanged) == [QuotaChanged("a", 32 * SLOT)]
    assert site.events.of(QuotaReached) == [QuotaReached("a", 32 * SLOT, 40 * SLOT, 0)]


def test_who_stores_beyond_its_quota_pays_with_its_own_oldest(site: EvictionHarness) -> None:
    site.quotas.set("a", 16 * SLOT)
    for number in range(60):
        site.store("b", number)
    for number in range(100):
        site.store("a", number)
        assert site.used("a") <= 16
        site.evictor.cycle()
        site.store("a", number)
    assert site.used("b") == 60
    assert site.has("a", 99, 98) == [98, 99]
    assert site.has("a", 0, 1) == []


def test_when_l1_is_full_a_store_beyond_its_quota_still_costs_no_other_salt(site: EvictionHarness) -> None:
    site.quotas.set("a", 8 * SLOT)
    for number in range(8):
        site.store("a", number)
    for number in range(94):  # just below the watermark
        site.store("b", number)
    assert site.store("a", *range(100, 108)) == 0
    site.evictor.cycle()
    assert site.used("b") == 94
    assert site.store("a", *range(100, 108)) == 8


def test_an_allowlist_keeps_only_who_is_on_it(site: EvictionHarness) -> None:
    site.quotas.begin({"a": 4 * SLOT}, 0)
    assert (site.store("", 1), site.store("b", 1), site.store("a", 1)) == (0, 0, 1)
    site.evictor.cycle()
    assert site.quotas.everything() == [Quota("a", 4 * SLOT, SLOT, True)]
    site.quotas.delete("a")
    site.evictor.cycle()
    assert site.used("a") == 0
    assert site.events.of(QuotaChanged) == [QuotaChanged("a", 0)]


def patient_store(site: EvictionHarness, salt: str, numbers: range) -> tuple[threading.Thread, list[int]]:
    """A store that waits for room on a thread of its own; afterwards the list has the indexes that it got."""
    record = site.cache.intern(KeySpace("m", 1, 0, salt, 16, HashChain.BLAKE3, bytes(16)), PAYLOAD)
    hashes, got = [number.to_bytes(32, "big") for number in numbers], []

    def run() -> None:
        lease, indexes = site.cache.reserve(WORKER, record, hashes, None)
        got.extend(reserve_with_wait(site.cache, lease, record, hashes, indexes, 20.0, lambda: True))
        site.cache.publish(lease, list(lease.slots))

    thread = threading.Thread(target=run)
    thread.start()
    return thread, got


def evict_until(site: EvictionHarness, done: Callable[[], bool]) -> None:
    for _ in range(2000):
        if done():
            return
        site.evictor.cycle()
        time.sleep(0.001)
    raise AssertionError("nothing came of it")


def test_a_store_at_its_quota_waits_for_its_own_oldest_to_leave(site: EvictionHarness) -> None:
    site.quotas.set("a", 16 * SLOT)
    for number in range(16):
        site.store("a", number)
        site.store("b", number)
    thread, got = patient_store(site, "a", range(100, 110))
    evict_until(site, lambda: not thread.is_alive())
    assert got == list(range(10))
    assert site.has("a", *range(100, 110)) == list(range(100, 110))
    assert site.used("a") <= 16
    assert site.used("b") == 16


def test_a_store_at_its_quota_goes_on_when_what_was_read_is_released_or_the_quota_is_raised(
    site: EvictionHarness,
) -> None:
    site.quotas.set("a", 4 * SLOT)
    for number in range(4):
        site.store("a", number)
    reader = site.read("a", *range(4))
    thread, got = patient_store(site, "a", range(100, 102))
    evict_until(site, lambda: site.cache.salts.any_over)
    for _ in range(20):
        site.evictor.cycle()
    assert thread.is_alive()
    site.cache.leases.end(reader)
    evict_until(site, lambda: not thread.is_alive())
    assert got == [0, 1]
    reader = site.read("a", *range(100, 102), *range(4))
    thread, got = patient_store(site, "a", range(200, 204))
    evict_until(site, lambda: site.cache.salts.any_over)
    site.quotas.set("a", 16 * SLOT)
    evict_until(site, lambda: not thread.is_alive())
    assert got == [0, 1, 2, 3]
    site.cache.leases.end(reader)


def test_a_store_that_is_larger_than_its_quota_does_not_wait(site: EvictionHarness) -> None:
    site.quotas.set("a", 4 * SLOT)
    thread, got = patient_store(site, "a", range(6))
    thread.join(10)
    assert not thread.is_alive()
    assert got == [0, 1, 2, 3]


def test_who_waits_at_its_quota_is_woken_when_the_server_stops(site: EvictionHarness) -> None:
    site.quotas.set("a", 4 * SLOT)
    site.store("a", *range(4))
    reader = site.read("a", *range(4))
    thread, got = patient_store(site, "a", range(100, 102))
    evict_until(site, lambda: bool(site.cache.salts.waits))
    site.cache.cancel_waits()
    thread.join(10)
    assert not thread.is_alive()
    assert got == []
    site.cache.leases.end(reader)


def test_what_is_read_stays_until_it_is_not(site: EvictionHarness) -> None:
    for number in range(20):
        site.store("a", number)
    reader = site.read("a", *range(20))
    site.quotas.set("a", 0)
    for _ in range(5):
        site.evictor.cycle()
    assert site.used("a") == 20
    assert site.events.of(QuotaReached) == [QuotaReached("a", 0, 20 * SLOT, 0)], "once, until something leaves"
    assert site.cache.salts.any_over, "it is tried again by itself"
    site.cache.leases.end(reader)
    site.evictor.cycle()
    assert site.used("a") == 0
    site.evictor.cycle()
    assert not site.cache.salts.any_over


def test_one_that_cannot_be_brought_below_its_quota_does_not_keep_room_from_others(site: EvictionHarness) -> None:
    for number in range(60):
        site.store("a", number)
    reader = site.read("a", *range(60))
    site.quotas.set("a", SLOT)
    for number in range(60):
        site.store("b", number)
    site.evictor.cycle()
    assert site.cache.used_ratio <= 0.8
    site.cache.leases.end(reader)


def test_quotas_that_add_up_to_more_than_l1_are_shared_fairly() -> None:
    site = EvictionHarness(open_isolated_lru(None))
    site.quotas.begin({"a": 100 * SLOT, "b": 100 * SLOT}, None)
    for number in range(40):
        site.store("b", number)
    for number in range(400):
        if not site.store("a", 1000 + number):
            site.evictor.cycle()
        site.evictor.cycle()
    assert site.used("b") == 40, "it has less than half of what there is"
    site.arena.close()


def test_a_salt_that_is_hit_much_cannot_push_out_one_that_is_not() -> None:
    site = EvictionHarness(open_isolated_lru(None))
    for number in range(30):
        site.store("quiet", number)
    for number in range(2000):
        site.store("loud", number)
        site.cache.leases.end(site.read("loud", number))
        site.evictor.cycle()
    assert site.used("quiet") == 30
    site.arena.close()


@pytest.mark.parametrize("opener", OPENERS)
def test_without_isolation_no_quota_is_taken(opener: Callable[[None], EvictionPolicy]) -> None:
    site = EvictionHarness(opener(None))
    quotas = Quotas(site.cache, "LRU", False, site.events)
    quotas.begin({}, None)
    remedy = "'LRU' does not; start the server with --eviction-policy IsolatedLRU"
    with pytest.raises(QuotaRefusedError, match=remedy):
        quotas.set("a", 1)
    for limits, default in (({}, 0), ({"a": 1}, None)):
        with pytest.raises(QuotaRefusedError, match=remedy):
            quotas.begin(limits, default)
    assert not quotas.delete("a")
    assert (quotas.default_bytes, quotas.get("a")) == (None, Quota("a", None, 0, False))
    assert site.events.events == []
    site.arena.close()


def test_status_shows_those_that_use_most(site: EvictionHarness) -> None:
    site.quotas.set("idle", 7)
    site.store("", 1, 2, 3)
    for number in range(110):
        site.quotas.set(f"tenant {number:03}", number)
    status = site.quotas.status()
    assert (status["default_limit_bytes"], status["salts"], len(status["largest"])) == (None, 112, 100)
    assert status["largest"][:2] == [
        {"cache_salt": "_default", "limit_bytes": None, "used_bytes": 3 * SLOT},
        {"cache_salt": "idle", "limit_bytes": 7, "used_bytes": 0},
    ]


@pytest.mark.parametrize("opener", OPENERS)
def test_a_demand_by_salt_takes_from_no_other(opener: Callable[[None], EvictionPolicy]) -> None:
    """Whatever the policy received before."""
    slots_of = st.lists(st.integers(0, 23), unique=True, max_size=8)

    class Machine(RuleBasedStateMachine):
        @initialize()
        def open(self) -> None:
            self.modelled = ModelledPolicy(opener(None))

        @rule(slots=slots_of, size=st.sampled_from([SMALL, LARGE]), salt=st.sampled_from(SALTS))
        def insert(self, slots: list[int], size: int, salt: str) -> None:
            self.modelled.insert(slots, size, salt)

        @rule(slots=slots_of)
        def access(self, slots: list[int]) -> None:
            self.modelled.access(slots)

        @rule(slots=slots_of)
        def remove(self, slots: list[int]) -> None:
            self.modelled.remove(slots)

        @rule(slots=slots_of)
        def hold(self, slots: list[int]) -> None:
            self.modelled.held.update(slots)

        @rule(salt=st.sampled_from([*SALTS, "absent"]), wanted=st.integers(1, 30 * LARGE))
        def demand(self, salt: str, wanted: int) -> None:
            victims = self.modelled.victims(0, None, {salt: wanted})
            assert {self.modelled.live[slot].salt for slot in victims} <= {salt}
            self.modelled.remove(victims[: len(victims) // 2])

        @invariant()
        def demands_of_all_do_not_mix(self) -> None:
            victims = self.modelled.policy.victims(
                EvictionDemand(0, {}, {SALTS[0]: SMALL}), lambda slot: slot in self.modelled.live
            )
            assert {self.modelled.live[slot].salt for slot in victims} <= {space_of(SALTS[0]).cache_salt}

    run_state_machine_as_test(Machine, settings=settings(max_examples=60, stateful_step_count=25, deadline=None))


@pytest.mark.parametrize("opener", OPENERS)
def test_a_salt_within_quotas_that_fit_loses_nothing(opener: Callable[[None], EvictionPolicy]) -> None:
    """Quotas that add up to less than the watermark are guarantees: only the salt itself causes evictions of its objects."""
    limits = {"a": 30, "b": 20, "c": 40}
    numbers = st.lists(st.integers(0, 100), unique=True, min_size=1, max_size=12)

    class Machine(RuleBasedStateMachine):
        @initialize()
        def open(self) -> None:
            self.site = EvictionHarness(opener(None))
            self.site.quotas.begin({salt: count * SLOT for salt, count in limits.items()}, 0)
            self.stored: dict[str, set[int]] = {salt: set() for salt in limits}

        def teardown(self) -> None:
            if hasattr(self, "site"):
                self.site.arena.close()

        @rule(salt=st.sampled_from(["a", "c", "unlimited"]), numbers=numbers)
        def store_anything(self, salt: str, numbers: list[int]) -> None:
            self.site.store(salt, *numbers)

        @rule(number=st.integers(0, 18))
        def store_within(self, number: int) -> None:
            assert self.site.store("b", number) == (number not in self.stored["b"])
            self.stored["b"].add(number)

        @rule(salt=st.sampled_from(["a", "b", "c"]), numbers=numbers)
        def hit(self, salt: str, numbers: list[int]) -> None:
            self.site.cache.leases.end(self.site.read(salt, *numbers))

        @rule()
        def evict(self) -> None:
            self.site.evictor.cycle()

        @invariant()
        def b_has_everything(self) -> None:
            assert self.site.has("b", *range(19)) == sorted(self.stored["b"])
            assert all(self.site.used(salt) <= count for salt, count in limits.items())

    run_state_machine_as_test(Machine, settings=settings(max_examples=60, stateful_step_count=30, deadline=None))
