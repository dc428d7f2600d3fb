"""Each algorithm against a second one that was written from its paper: the same hits and the same victims, over traces
with popular objects, scans and loops."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from lmcache_core import AccessFacts, EvictionDemand, EvictionPolicy, HashChain, InsertFacts, KeySpace
from lmcache_policies.eviction.arc import Arc, open_arc
from lmcache_policies.eviction.fifo import open_fifo
from lmcache_policies.eviction.isolated_lru import open_isolated_lru
from lmcache_policies.eviction.lfu import LfuSettings, open_lfu
from lmcache_policies.eviction.mru import open_mru
from lmcache_policies.eviction.s3_fifo import S3FifoSettings, open_s3_fifo
from lmcache_policies.eviction.sieve import open_sieve
from lmcache_policies.eviction.sized_policy import SizedPolicy
from lmcache_policies.eviction.slru import SlruSettings, open_slru
from lmcache_policies.eviction.w_tiny_lfu import WTinyLfuSettings, open_w_tiny_lfu
from plugins.policies.tests.reference_caches import (
    CAPACITY,
    Cache,
    NaiveArc,
    NaiveFifo,
    NaiveLfu,
    NaiveLru,
    NaiveMru,
    NaiveS3Fifo,
    NaiveSieve,
    NaiveSlru,
    NaiveWTinyLfu,
    PaperArc,
)

SPACE = KeySpace("m", 0, 0, "", 256, HashChain.BLAKE3, bytes(16))


class UnderTest(Cache):
    """The policy of this distribution, one slot per object."""

    def __init__(self, policy: EvictionPolicy) -> None:
        super().__init__()
        self._policy = policy
        self._slot_of: dict[int, int] = {}
        self._key_of: dict[int, int] = {}
        self._free = list(range(CAPACITY))

    def has(self, key: int) -> bool:
        return key in self._slot_of

    def count(self) -> int:
        return len(self._slot_of)

    def hit(self, key: int) -> None:
        self._policy.on_access([self._slot_of[key]], AccessFacts())

    def insert(self, key: int) -> None:
        slot = self._free.pop()
        self._slot_of[key], self._key_of[slot] = slot, key
        self._policy.on_insert([slot], InsertFacts(4096, SPACE, 0, [key.to_bytes(36, "big")]))

    def evict(self) -> int:
        (slot,) = self._policy.victims(EvictionDemand(1, {}), lambda slot: True)
        self._policy.on_remove([slot])
        self._free.append(slot)
        key = self._key_of.pop(slot)
        del self._slot_of[key]
        return key


def trace(seed: int) -> list[int]:
    """Popular objects, with now and then a scan of new ones or a loop somewhat longer than the cache."""
    numbers = random.Random(seed)
    weights = [1 / (rank + 1) ** 0.9 for rank in range(400)]
    requests: list[int] = []
    while len(requests) < 8000:
        requests += numbers.choices(range(400), weights, k=300)
        begin = 1000 + len(requests)
        if numbers.random() < 0.4:
            requests += range(begin, begin + 80)
        if numbers.random() < 0.2:
            requests += 2 * list(range(500, 500 + CAPACITY + 10))
    return requests


def played(cache: Cache, requests: Sequence[int]) -> Cache:
    for key in requests:
        cache.request(key)
    return cache


PAIRS: dict[str, tuple[Callable[[], EvictionPolicy], Callable[[], Cache]]] = {
    "ARC": (lambda: open_arc(None), NaiveArc),
    "FIFO": (lambda: open_fifo(None), NaiveFifo),
    "IsolatedLRU": (lambda: open_isolated_lru(None), NaiveLru),
    "LFU": (lambda: open_lfu(LfuSettings(halving_hits_per_object=0)), NaiveLfu),
    "MRU": (lambda: open_mru(None), NaiveMru),
    "S3FIFO": (lambda: open_s3_fifo(S3FifoSettings()), NaiveS3Fifo),
    "SIEVE": (lambda: open_sieve(None), NaiveSieve),
    "SLRU": (lambda: open_slru(SlruSettings()), NaiveSlru),
    "W-TinyLFU": (lambda: open_w_tiny_lfu(WTinyLfuSettings()), NaiveWTinyLfu),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", PAIRS)
def test_the_same_hits_and_the_same_victims_as_the_reference(name: str, seed: int) -> None:
    opened, reference = PAIRS[name]
    ours, theirs = (played(cache, trace(seed)) for cache in (UnderTest(opened()), reference()))
    assert ours.victims == theirs.victims
    assert ours.hits == theirs.hits > 0


@pytest.mark.parametrize("seed", range(3))
def test_making_room_beforehand_costs_arc_next_to_nothing(seed: int) -> None:
    requests = trace(seed)
    ours = played(UnderTest(SizedPolicy(Arc)), requests).hits
    papers = played(PaperArc(), requests).hits
    assert abs(ours - papers) <= 0.01 * len(requests)


@pytest.mark.parametrize("name", ["ARC", "LFU", "S3FIFO", "SIEVE", "SLRU", "W-TinyLFU"])
def test_scans_cost_less_than_with_lru(name: str) -> None:
    ours, lru = (played(UnderTest(PAIRS[which][0]()), trace(1)).hits for which in (name, "IsolatedLRU"))
    assert ours > 1.05 * lru
