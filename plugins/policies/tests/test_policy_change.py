"""Every eviction policy follows every kind of policy while L1 is in use, and knows what is there."""

from __future__ import annotations

import random

import pytest

from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_core.builtin.lru import open_lru
from lmcache_core.contracts.policies import AccessFacts, EvictionDemand, EvictionPolicy, RequestFacts
from lmcache_core.controllers import policy_guard
from lmcache_core.controllers.eviction import EvictionController
from lmcache_core.l1.arena import anonymous_arena
from lmcache_core.l1.cache import L1Cache
from lmcache_core.l1.leases import Owner, OwnerKind
from lmcache_core.model.keys import HashChain, KeySpace
from lmcache_devkit.event_recorder import EventRecorder
from lmcache_devkit.l1_audit import audit
from lmcache_policies.plugin import lmcache_eviction_policies

NAMES = [offer.name for offer in lmcache_eviction_policies()]
OWNER = Owner(OwnerKind.WORKER, 1)
PAYLOADS = (4096, 12288)
"""Two sizes of objects, which have orders of their own in some policies."""
EVERYTHING = EvictionDemand(1 << 40, {})


def opened(name: str) -> EvictionPolicy:
    if name == "LRU":
        return open_lru(None)
    plugins = load_plugins()
    model = plugins.model(OfferKind.EVICTION_POLICY, name)
    policy: EvictionPolicy = plugins.open(OfferKind.EVICTION_POLICY, name, model() if model else None)
    return policy


class Bench:
    """L1 under a random but repeatable load, with its eviction on the same thread."""

    def __init__(self, policy: EvictionPolicy) -> None:
        self.arena = anonymous_arena(1 << 20)
        self.cache = L1Cache(self.arena, 4096)
        self.eviction = EvictionController(self.cache, policy, 0.8, 0.2, EventRecorder())
        self.random = random.Random(7)
        self.names = 0

    def work(self, steps: int = 40) -> None:
        for _ in range(steps):
            size = self.random.choice(PAYLOADS)
            space = KeySpace("m", 1, 0, self.random.choice("ab"), 16, HashChain.BLAKE3, bytes([size % 251]) * 16)
            names = [(self.names + number).to_bytes(32, "little") for number in range(self.random.randint(1, 4))]
            self.names += len(names)
            lease, _ = self.cache.reserve(OWNER, self.cache.intern(space, size), names, None)
            self.cache.publish(lease, list(lease.slots))
            there = self.there()
            self.cache.log_access(self.random.sample(there, min(3, len(there))), AccessFacts(0, RequestFacts()))
            self.eviction.cycle()

    def there(self) -> list[int]:
        return [
            slot
            for slot, _ in self.cache.contents.insert_facts(range(self.cache.contents.slot_numbers), RequestFacts())
        ]

    def close(self) -> None:
        assert self.cache.contents.state_counts().is_balanced
        audit(self.cache)
        self.eviction._wakes.close()
        self.arena.close()


@pytest.mark.parametrize("before", ["LRU", "S3FIFO", "noop", "LeastHitDensity"])
@pytest.mark.parametrize("name", [*NAMES, "LRU"])
def test_a_policy_takes_over_under_load(name: str, before: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_guard, "STEP_SLOTS", 4)
    monkeypatch.setattr(policy_guard, "_SLICE", 4)
    bench = Bench(opened(before))
    bench.work()
    change = bench.eviction.change_policy(opened(name))
    bench.work(60)
    while not change.wait(0):
        bench.eviction.cycle()
    assert not change.failed
    bench.work()
    bench.eviction._notify(bench.cache.take_access_log())
    known = sorted(change.policy.victims(EVERYTHING, lambda slot: True))
    assert known == (bench.there() if change.policy.evicts else [])
    if change.policy.evicts:
        assert bench.cache.used_ratio < 1.0
    bench.close()


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("MRU", "noop")])
def test_what_was_cold_leaves_first(name: str) -> None:
    """Of a hundred objects, the half that was never hit is the half that the next policy evicts, mostly."""
    bench = Bench(opened("LRU"))
    space = KeySpace("m", 1, 0, "", 16, HashChain.BLAKE3, bytes(16))
    record = bench.cache.intern(space, 4096)
    slots: list[int] = []
    for number in range(100):
        lease, _ = bench.cache.reserve(OWNER, record, [number.to_bytes(32, "little")], None)
        slots += lease.slots
        bench.cache.publish(lease, list(lease.slots))
    hot = slots[:50]
    bench.cache.log_access(list(hot), AccessFacts(0, RequestFacts()))
    change = bench.eviction.change_policy(opened(name))
    while not change.wait(0):
        bench.eviction.cycle()
    first = list(change.policy.victims(EvictionDemand(25 * 8192, {}), lambda slot: True))[:25]
    assert len(set(first) - set(hot)) >= 20, f"{len(set(first) & set(hot))} of 25 had been hit"
    bench.close()
