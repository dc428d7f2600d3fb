"""The requirements of a store policy, as tests.  A distribution runs them with two lines:

class TestMine(StorePolicySuite):
    offer = "mine"
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import pytest

from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.policies import AdapterFacts, RequestFacts, StoredObject, StorePlan, StorePolicy
from lmcache_devkit.borrowed_memory import SPACE, object_key
from lmcache_devkit.offer_under_test import OfferSuite, OpenableOffer
from lmcache_devkit.policy_model import line_budget

OBJECT_BYTES = 8192
SPACES = (
    *(
        replace(SPACE, model_name=name)
        for name in ("llama", "", "/", "a/b/c", "модель", "x" * 500, "m##0123456789abcdef")
    ),
    *(replace(SPACE, cache_salt=salt) for salt in ("", "_default", "tenant/7", "käse")),
    replace(SPACE, kv_rank=0x08070807),
)
REQUESTS = (
    RequestFacts(),
    RequestFacts(0.5, 6),
    RequestFacts(1.5, 7, prompt_chunks=1),
    RequestFacts(2.5, 8, prompt_chunks=512, hit_chunks=512),
    RequestFacts(3.5, 2**63, prompt_chunks=100_000, hit_chunks=1),
)
"""One of which nothing is known, one without a lookup, then short, hit in full, and long."""


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

    def test_every_key_and_every_request_is_planned(self, policy: StorePolicy) -> None:
        """Models, tenants and shards are called as engines and operators like, and of a request little may be known."""
        adapters = tuple(AdapterFacts(f"l2-{index}", Capability.NONE, healthy=True) for index in range(2))
        for number, space in enumerate(SPACES):
            for request in REQUESTS:
                objects = [
                    item._replace(space=space, chunk=3 * place, request=request)
                    for place, item in enumerate(stored(range(10 * number, 10 * number + 3)))
                ]
                for batch in (objects, [item._replace(hit=True) for item in objects]):
                    for targets in checked(policy.plan(batch, adapters), batch).targets:
                        assert set(targets) <= {0, 1}

    def test_adapters_are_those_of_this_call(self, under_test: OpenableOffer) -> None:
        """They come and go while the server runs: nothing is remembered of them from one call to the next."""
        rows = list(adapter_rows())
        for first in rows:
            policy: StorePolicy = under_test.open()
            for number, adapters in enumerate((first, *rows)):
                healthy = {index for index, adapter in enumerate(adapters) if adapter.healthy}
                objects = stored(range(10 * number, 10 * number + 3))
                for targets in checked(policy.plan(objects, adapters), objects).targets:
                    assert set(targets) <= healthy, f"of the healthy adapters {healthy}, {targets} were named"

    def test_objects_that_no_adapter_takes_stay_in_l1(self, policy: StorePolicy) -> None:
        for adapters in ((), (AdapterFacts("down", Capability.NONE, healthy=False),)):
            plan = checked(policy.plan(stored(range(4)), adapters), stored(range(4)))
            assert not plan.drop_from_l1, "objects that are stored nowhere would be lost"

    def test_a_batch_of_nothing_is_planned_the_same_each_time(self, policy: StorePolicy) -> None:
        for adapters in adapter_rows():
            first, second = (checked(policy.plan([], adapters), []) for _ in range(2))
            assert first == second

    def test_the_work_per_object_does_not_grow_with_the_batch(self, under_test: OpenableOffer) -> None:
        few, many = (_steps_per_object(under_test.open(), batch) for batch in (256, 4096))
        assert many <= 2.5 * few + 8, f"{few:.0f} steps per object of a batch of 256, {many:.0f} of a batch of 4096"

    def test_the_work_per_object_does_not_grow_with_the_objects_that_passed(self, under_test: OpenableOffer) -> None:
        fresh, old = (_steps_per_object(under_test.open(), 256, passed) for passed in (0, 20_000))
        assert old <= 2.5 * fresh + 8, f"{fresh:.0f} steps per object at first, {old:.0f} after 20000 objects"

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


class _Hash(bytes):
    """A chunk hash that counts how often it is compared: searching in C code is work that no line shows."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        _Hash.compared += 1
        return bytes.__eq__(self, other) is True

    __hash__ = bytes.__hash__


def _steps_per_object(policy: StorePolicy, batch: int, passed: int = 0) -> float:
    """Lines of Python and comparisons of chunk hashes for one batch, after `passed` other objects in batches of 64."""
    adapters = tuple(AdapterFacts(f"l2-{index}", Capability.NONE, healthy=True) for index in range(2))
    for first in range(1_000_000, 1_000_000 + passed, 64):
        policy.plan(stored(range(first, first + 64)), adapters)
    objects = [item._replace(chunk_hash=_Hash(item.chunk_hash)) for item in stored(range(batch))]
    lines = 2_000 * batch
    _Hash.compared = 0
    with line_budget(lines) as left:
        policy.plan(objects, adapters)
    return (lines - left[0] + _Hash.compared) / batch
