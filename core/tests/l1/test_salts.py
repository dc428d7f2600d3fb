"""What salts use is known to the byte, and no reservation goes beyond a limit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmcache_core.kernels.choice import PURE
from lmcache_core.l1.arena import Arena, anonymous_arena
from lmcache_core.l1.cache import L1Cache
from lmcache_core.l1.index import SPACES_KEPT, SlotIndex
from lmcache_core.l1.leases import Lease, Owner, OwnerKind
from lmcache_core.l1.salts import SaltAccounts, SaltExcess, SaltLimits
from lmcache_core.model.keys import HashChain, KeySpace
from lmcache_devkit.l1_audit import audit

SMALL, LARGE = 4096, 12288
SLOT = {SMALL: SMALL + 4096, LARGE: LARGE + 4096}
WORKER = Owner(OwnerKind.WORKER, 1)
SALTS = ("", "a", "b")


def space(salt: str, model: str = "m") -> KeySpace:
    return KeySpace(model, 1, 0, salt, 16, HashChain.BLAKE3, bytes(16))


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = anonymous_arena(1 << 20)
    yield arena
    arena.close()


@pytest.fixture
def cache(arena: Arena) -> L1Cache:
    return L1Cache(arena, 4096)


def reserve(cache: L1Cache, salt: str, numbers: range, payload: int = SMALL) -> Lease:
    record = cache.intern(space(salt, f"model of {payload}"), payload)
    return cache.reserve(WORKER, record, [number.to_bytes(32, "big") for number in numbers], None)[0]


def store(cache: L1Cache, salt: str, numbers: range, payload: int = SMALL) -> list[int]:
    lease = reserve(cache, salt, numbers, payload)
    slots = list(lease.slots)
    cache.publish(lease, slots)
    return slots


def test_slots_count_from_the_reservation_to_the_last_hold(cache: L1Cache) -> None:
    lease = reserve(cache, "a", range(3))
    assert cache.salts.used_by("a") == 3 * SLOT[SMALL]
    slots = list(lease.slots)
    cache.publish(lease, slots[:2])
    cache.discard(lease, slots[2:])
    store(cache, "a", range(10, 11), LARGE)
    store(cache, "b", range(1))
    assert cache.salts.used_by_salt() == {"a": 2 * SLOT[SMALL] + SLOT[LARGE], "b": SLOT[SMALL]}
    reader = cache.leases.open(WORKER, None)
    record = cache.intern(space("a", f"model of {SMALL}"), SMALL)
    cache.leases.acquire(reader, record, [bytes(32)])
    cache.contents.clear(force=True)
    assert cache.salts.used_by_salt() == {"a": SLOT[SMALL]}
    cache.leases.end(reader)
    assert cache.salts.used_by_salt() == {}


def test_a_reservation_gets_a_prefix_within_the_limit_and_the_rest_is_due_from_its_own(cache: L1Cache) -> None:
    cache.salts.limit(SaltLimits({"a": 4 * SLOT[SMALL]}), ())
    assert len(store(cache, "a", range(3))) == 3
    assert len(store(cache, "a", range(10, 15))) == 1
    assert store(cache, "a", range(20, 22), LARGE) == []
    assert len(store(cache, "b", range(20))) == 20
    (excess,) = cache.salts.take_excess()
    assert excess == SaltExcess("a", 4 * SLOT[SMALL], 4 * SLOT[SMALL], 4 * SLOT[SMALL] + 2 * SLOT[LARGE])
    assert excess.due_bytes == 4 * SLOT[SMALL]
    assert cache.salts.take_excess() == []
    assert not cache.salts.any_over
    assert cache.take_demand() == {}, "space that a limit refuses is not demanded of all salts"


def test_a_lowered_limit_is_due_until_it_is_kept(cache: L1Cache) -> None:
    slots = store(cache, "a", range(32))
    cache.salts.limit(SaltLimits({}, default=16 * SLOT[SMALL]), ["a"])
    for _ in range(2):
        (excess,) = cache.salts.take_excess()
        assert excess.due_bytes == 17 * SLOT[SMALL], (
            "a sixteenth more than it must, so that the next store need not wait"
        )
        assert cache.salts.any_over
    cache.evict(slots[:17])
    cache.take_access_log()
    cache.evict(slots[:17])
    assert cache.salts.used_by("a") == 15 * SLOT[SMALL]
    assert cache.salts.take_excess() == []
    assert not cache.salts.any_over


@pytest.mark.parametrize("limit", [0, SLOT[SMALL] - 1])
def test_what_can_never_fit_is_refused_and_evicts_nothing(cache: L1Cache, limit: int) -> None:
    cache.salts.limit(SaltLimits({"a": limit}), ["a"])
    assert store(cache, "a", range(3)) == []
    assert cache.salts.take_excess() == []


def test_a_limit_of_its_own_goes_before_the_default_one() -> None:
    limits = SaltLimits({"a": 5, "b": 0}, default=3)
    assert [limits.of(salt) for salt in ("a", "b", "", "c")] == [5, 0, 3, 3]
    assert SaltLimits({"a": 5}).of("b") is None


def test_a_salt_whose_spaces_are_forgotten_is_forgotten_and_comes_back() -> None:
    index = SlotIndex(1 << 20, 4096, PURE)
    spaces, accounts = index.spaces, SaltAccounts(index)
    old = spaces.intern(space("old"), SMALL)
    for number in range(SPACES_KEPT):
        spaces.intern(space("many", f"model {number}"), SMALL).objects = 1
    assert not list(spaces.of_salt("old"))
    assert accounts.used_by("many") == SLOT[SMALL] * SPACES_KEPT
    spaces.adopt(old)
    old.objects = 7
    assert accounts.used_by("old") == accounts.used_by_salt()["old"] == 7 * SLOT[SMALL]


operations = st.lists(
    st.one_of(
        st.tuples(st.just("store"), st.sampled_from(SALTS), st.integers(0, 30), st.integers(1, 8)),
        st.tuples(st.just("begin"), st.sampled_from(SALTS), st.integers(0, 30), st.integers(1, 8)),
        st.tuples(st.just("evict"), st.sampled_from(SALTS), st.integers(0, 60), st.integers(1, 8)),
        st.tuples(st.just("clear"), st.sampled_from(SALTS), st.integers(0, 1), st.integers(1, 1)),
        st.tuples(st.just("limit"), st.sampled_from(SALTS), st.integers(0, 12), st.integers(1, 1)),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(operations)
def test_no_salt_ever_takes_more_than_its_limit(steps: list[tuple[str, str, int, int]]) -> None:
    arena = anonymous_arena(1 << 20)
    cache, limits, ceiling = L1Cache(arena, 4096), SaltLimits(), dict.fromkeys(SALTS, 1 << 30)
    for verb, salt, number, count in steps:
        payload = LARGE if number % 3 == 0 else SMALL
        match verb:
            case "store":
                store(cache, salt, range(number, number + count), payload)
            case "begin":
                reserve(cache, salt, range(100 + number, 100 + number + count), payload)
            case "evict":
                cache.take_access_log()
                cache.evict(range(number, number + count))
            case "clear":
                cache.contents.clear(force=bool(number))
            case _:
                limits = SaltLimits({**limits.by_salt, salt: number * SLOT[SMALL]})
                cache.salts.limit(limits, [salt])
                ceiling[salt] = max(number * SLOT[SMALL], cache.salts.used_by(salt))
        used = cache.salts.used_by_salt()
        assert sum(used.values()) == cache.contents.state_counts().used_bytes
        for each in SALTS:
            assert used.get(each, 0) == cache.salts.used_by(each) <= ceiling[each]
            ceiling[each] = max(limits.by_salt.get(each, 1 << 30), cache.salts.used_by(each))
        audit(cache)
    arena.close()


def test_who_waits_at_a_limit_is_waited_for(cache: L1Cache) -> None:
    cache.salts.limit(SaltLimits({"a": 4 * SLOT[SMALL]}), ())
    full = reserve(cache, "a", range(4))
    lease = reserve(cache, "a", range(10, 12))
    waited_for = [cache.stores_waiting]
    wait = cache.wait_for_space(lease, cache.intern(space("a", f"model of {SMALL}"), SMALL), [bytes(31) + b"\x0a"])
    assert wait is not None
    waited_for.append(cache.stores_waiting)
    cache.leases.end(full)
    cache.salts.notify_waits()
    assert wait.event.is_set()
    cache.end_wait(wait)
    waited_for.append(cache.stores_waiting)
    assert waited_for == [0, 1, 0], "or who makes room would rest for too long"
