"""Usage over shared L2 is exact, an object counts once, and a listing that is made meanwhile neither loses nor invents one."""

from __future__ import annotations

import gc
import time
import tracemalloc

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lmcache_coordinator.usage import Backend, SharedUsage, Victim
from lmcache_core import HashChain, KeySpace, ObjectKey, SystemClock
from lmcache_core.builtin.lru import LeastRecentlyUsed

BACKEND = Backend("redis", "redis")
SPACES = [KeySpace("m", 0, 0, salt, 256, HashChain.BLAKE3, bytes(16)) for salt in ("", "a", "b")]
SIZES = (100, 250)
NUMBERS = st.lists(st.integers(0, 20), min_size=1, max_size=8, unique=True)


def names(numbers: list[int]) -> list[bytes]:
    return [number.to_bytes(32, "big") for number in numbers]


class UsageMachine(RuleBasedStateMachine):
    """The backend itself is the model; members tell of what they do there, some of them twice."""

    @initialize()
    def start(self) -> None:
        self.usage = SharedUsage(LeastRecentlyUsed, SystemClock())
        self.has: dict[ObjectKey, int] = {}
        self.unreported: set[ObjectKey] = set()
        self.pages: list[list[tuple[ObjectKey, int]]] | None = None
        self.places: list[ObjectKey | None] = [None] * 80

    @rule(space=st.sampled_from(SPACES), numbers=NUMBERS, size=st.sampled_from(SIZES), twice=st.booleans())
    def store(self, space: KeySpace, numbers: list[int], size: int, twice: bool) -> None:
        new = [name for name in names(numbers) if ObjectKey(space, name) not in self.has]
        for name in new:
            self._put(ObjectKey(space, name), size)
        for _ in range(1 + twice):
            if new:
                self.usage.store(BACKEND, space, new, size)

    @rule(space=st.sampled_from(SPACES), numbers=NUMBERS)
    def delete(self, space: KeySpace, numbers: list[int]) -> None:
        for name in names(numbers):
            self._take(ObjectKey(space, name))
        self.usage.delete(BACKEND, space, names(numbers))

    @rule(space=st.sampled_from(SPACES), numbers=NUMBERS)
    def access(self, space: KeySpace, numbers: list[int]) -> None:
        self.usage.access(BACKEND, space, names(numbers))

    @rule(space=st.sampled_from(SPACES), numbers=NUMBERS, size=st.sampled_from(SIZES), stored=st.booleans())
    @precondition(lambda self: self.pages is None)
    def change_without_telling(self, space: KeySpace, numbers: list[int], size: int, stored: bool) -> None:
        """What a lost message was about."""
        for name in names(numbers):
            key = ObjectKey(space, name)
            if stored and key not in self.has:
                self._put(key, size)
            elif not stored:
                self._take(key)
            self.unreported.add(key)

    @rule()
    @precondition(lambda self: self.pages is None)
    def begin_listing(self) -> None:
        self.usage.begin_listing(BACKEND)
        self.at = 0
        self.pages = []

    @rule(places=st.integers(1, 60))
    @precondition(lambda self: self.pages is not None)
    def list_page(self, places: int) -> None:
        """Read now, and reported later, when more has happened."""
        assert self.pages is not None
        keys = [key for key in self.places[self.at : self.at + places] if key is not None]
        self.pages.append([(key, self.has[key]) for key in keys])
        self.at += places
        if len(self.pages) > 2:
            self._tell(self.pages.pop(0))
        if self.at >= len(self.places):
            for page in self.pages:
                self._tell(page)
            self.usage.end_listing(BACKEND)
            self.pages = None
            self.unreported.clear()

    @rule(keys=st.integers(1, 5), size=st.integers(0, 600), salt=st.sampled_from(["", "a", "b"]))
    def victims(self, keys: int, size: int, salt: str) -> None:
        spared = {Victim(BACKEND, ObjectKey(space, names([3])[0])) for space in SPACES}
        victims = self.usage.victims(salt, keys, size, spared)
        assert not spared & set(victims)
        assert len(set(victims)) == len(victims)
        assert all(victim.key.space.cache_salt == salt and self.usage.has(victim) for victim in victims)
        enough = len(victims) >= keys and self.usage.size_of(victims) >= size
        others = self.usage.keys_of(salt) - sum(
            self.usage.has(each) and each.key.space.cache_salt == salt for each in spared
        )
        assert enough or len(victims) == others

    @invariant()
    def is_exact(self) -> None:
        if not hasattr(self, "usage") or self.unreported or self.pages is not None:
            return
        expected: dict[str, int] = {}
        for key, size in self.has.items():
            expected[key.space.cache_salt] = expected.get(key.space.cache_salt, 0) + size
        assert self.usage.by_salt() == expected

    def teardown(self) -> None:
        if hasattr(self, "usage"):
            self._finish_listing()
            if self.unreported:
                self.begin_listing()
                self._finish_listing()
            self.is_exact()

    def _finish_listing(self) -> None:
        while self.pages is not None:
            self.list_page(30)

    def _put(self, key: ObjectKey, size: int) -> None:
        self.has[key] = size
        self.places[self.places.index(None)] = key

    def _take(self, key: ObjectKey) -> None:
        if self.has.pop(key, None) is not None:
            self.places[self.places.index(key)] = None

    def _tell(self, page: list[tuple[ObjectKey, int]]) -> None:
        for key, size in page:
            self.usage.listed(BACKEND, key.space, [key.chunk_hash], size)


TestUsageMachine = UsageMachine.TestCase
TestUsageMachine.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


def test_salts_that_have_nothing_take_no_memory() -> None:
    """Salts may be names of users: they come and go for months."""
    usage, sizes = SharedUsage(LeastRecentlyUsed, SystemClock(), late_seconds=0), []
    for number in range(1_500):
        space = KeySpace("m", 0, 0, f"user-{number}", 256, HashChain.BLAKE3, bytes(16))
        usage.store(BACKEND, space, names([1]), 10)
        usage.delete(BACKEND, space, names([1]))
        usage.access(BACKEND, space, names([1]))
        usage.begin_listing(BACKEND)
        usage.delete(BACKEND, space, names([1]))
        usage.listed(BACKEND, space, names([1]), 10)
        usage.end_listing(BACKEND)
        if number in (500, 1_499):
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
        elif number == 0:
            tracemalloc.start()
    tracemalloc.stop()
    assert sizes[1] - sizes[0] < 100_000


def test_an_abandoned_listing_remembers_no_deletes() -> None:
    usage = SharedUsage(LeastRecentlyUsed, SystemClock(), late_seconds=0)
    usage.begin_listing(BACKEND)
    usage.delete(BACKEND, SPACES[0], names([1]))
    usage.abandon_listing(BACKEND)
    assert usage.listed(BACKEND, SPACES[0], names([2]), 10) == []
    assert usage.end_listing(BACKEND) == []


def test_the_work_for_one_salt_does_not_grow_with_the_others() -> None:
    usage = SharedUsage(LeastRecentlyUsed, SystemClock())
    salts = [f"user-{number}" for number in range(3000)]
    for salt in salts:
        usage.store(BACKEND, KeySpace("m", 0, 0, salt, 256, HashChain.BLAKE3, bytes(16)), names([1]), 10)
    begin = time.process_time()
    for salt in salts:
        assert usage.keys_of(salt) == len(usage.victims(salt, 1, 0, ())) == 1
    assert time.process_time() - begin < 1.0
