"""The laws of a store policy, as tests.  A distribution runs them with two lines:

class TestMine(StorePolicySuite):
    offer = "mine"
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator, Sequence
from itertools import product

import pytest

from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.policies import AdapterFacts, StoredObject, StorePlan, StorePolicy
from lmcache_core.testing.lent_memory import SPACE, object_key
from lmcache_core.testing.offer_under_test import OfferSuite, OpenableOffer

OBJECT_BYTES = 8192


class StorePolicySuite(OfferSuite):
    """Set `offer`."""

    kind = "store_policy"

    @pytest.fixture
    def policy(self, under_test: OpenableOffer) -> StorePolicy:
        policy: StorePolicy = under_test.open()
        assert isinstance(policy, StorePolicy)
        return policy

    def test_every_object_has_its_targets_and_they_are_healthy_adapters(self, policy: StorePolicy) -> None:
        for adapters in adapter_rows():
            healthy = {index for index, adapter in enumerate(adapters) if adapter.healthy}
            for objects in (stored(range(5)), stored(range(3, 9)), hit(range(4)), stored(range(1)), hit(range(20, 22))):
                for targets in checked(policy.plan(objects, adapters), objects).targets:
                    assert len(set(targets)) == len(targets), f"adapters named twice: {targets}"
                    assert set(targets) <= healthy, f"of the healthy adapters {healthy}, {targets} were named"

    def test_objects_that_no_adapter_takes_stay_in_l1(self, policy: StorePolicy) -> None:
        for adapters in ((), (AdapterFacts("down", Capability.NONE, healthy=False),)):
            plan = checked(policy.plan(stored(range(4)), adapters), stored(range(4)))
            assert not plan.drop_from_l1, "objects that are stored nowhere would be lost"

    def test_a_batch_of_nothing_is_planned_the_same_each_time(self, policy: StorePolicy) -> None:
        for adapters in adapter_rows():
            first, second = (checked(policy.plan([], adapters), []) for _ in range(2))
            assert first == second

    def test_memory_does_not_grow_with_the_objects_that_passed(self, under_test: OpenableOffer) -> None:
        adapters = tuple(AdapterFacts(f"l2-{index}", Capability.NONE, healthy=True) for index in range(2))
        tracemalloc.start()
        try:
            policy = under_test.open()
            bytes_after = []
            for begin in range(0, 100_000, 50_000):
                for first in range(begin, begin + 50_000, 100):
                    policy.plan(stored(range(first, first + 100)), adapters)
                gc.collect()
                bytes_after.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
        early, late = bytes_after
        assert late <= early + 262_144, f"{early} bytes after 50000 objects and {late} after 100000"


def stored(numbers: Sequence[int]) -> list[StoredObject]:
    return [StoredObject(SPACE, object_key(number).chunk_hash, OBJECT_BYTES) for number in numbers]


def hit(numbers: Sequence[int]) -> list[StoredObject]:
    return [item._replace(hit=True) for item in stored(numbers)]


def adapter_rows() -> Iterator[tuple[AdapterFacts, ...]]:
    """None to three adapters, in every state of health."""
    for count in range(4):
        for health in product((True, False), repeat=count):
            capabilities = (Capability.NONE, Capability.DURABLE, Capability.DURABLE | Capability.SHARED)
            rows = zip(health, capabilities, strict=False)
            yield tuple(AdapterFacts(f"l2-{index}", caps, up) for index, (up, caps) in enumerate(rows))


def checked(plan: StorePlan, objects: Sequence[StoredObject]) -> StorePlan:
    assert len(plan.targets) == len(objects), f"{len(plan.targets)} entries for {len(objects)} objects"
    return plan
