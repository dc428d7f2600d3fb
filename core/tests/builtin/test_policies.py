"""The default store and prefetch policies, and the log lines."""

from __future__ import annotations

import logging

import pytest

from lmcache_core.builtin import plugin
from lmcache_core.builtin.log_subscriber import open_log_subscriber
from lmcache_core.builtin.memory_l2 import CAPABILITIES
from lmcache_core.builtin.policies import open_load_from_first, open_store_everywhere
from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.events import (
    Event,
    LeasesExpired,
    ObjectRejected,
    ObjectsEvicted,
    PrefetchSubmitted,
    StoreCompleted,
    StoresDropped,
    StoreSubmitted,
    WorkerLeft,
    WorkerRegistered,
)
from lmcache_core.contracts.policies import AdapterFacts, StoredObject
from lmcache_core.model.keys import HashChain, KeySpace
from lmcache_core.model.results import Bitmap
from lmcache_devkit.prefetch_policy_suite import PrefetchPolicySuite
from lmcache_devkit.store_policy_suite import StorePolicySuite

SPACE = KeySpace("m", 0, 0, "", 256, HashChain.BLAKE3, bytes(16))
UP = AdapterFacts("up", Capability.NONE, healthy=True)
DOWN = AdapterFacts("down", Capability.NONE, healthy=False)


class TestStoreConformance(StorePolicySuite):
    offer = "default"


class TestPrefetchConformance(PrefetchPolicySuite):
    offer = "default"


def test_every_object_goes_to_every_healthy_adapter_and_stays_in_l1() -> None:
    objects = [StoredObject(SPACE, bytes(32), 4096)] * 3
    plan = open_store_everywhere(None).plan(objects, [UP, DOWN, UP])
    assert plan.targets == ((0, 2),) * 3
    assert not plan.drop_from_l1
    assert open_store_everywhere(None).plan(objects, []).targets == ((),) * 3
    assert open_store_everywhere(None).plan([], [UP]).targets == ()


def test_each_key_comes_from_the_first_healthy_adapter_that_has_it() -> None:
    found = [Bitmap(4, [0]), Bitmap(4, [0, 1]), Bitmap(4, [0, 1, 2])]
    policy = open_load_from_first(None)
    plan = policy.plan(found, [UP, UP, UP])
    assert plan.sources == (0, 1, 2, None)
    assert not plan.retain
    assert policy.plan(found, [DOWN, UP, UP]).sources == (1, 1, 2, None)
    assert policy.plan([], []).sources == ()


def test_the_plugin_says_what_the_memory_adapter_says() -> None:
    (memory,) = plugin.lmcache_l2_adapters()
    assert memory.capabilities == CAPABILITIES


LINES = [
    (StoreSubmitted("fs", 7, 3, 300), "DEBUG", "Submitted store task 7 adapter=fs objects=3 bytes=300"),
    (
        StoreCompleted("fs", 7, 2, 1, 0.25),
        "DEBUG",
        "L2 store task 7 completed adapter=fs stored=2 failed=1 seconds=0.250",
    ),
    (
        PrefetchSubmitted("r", 9, 4, 5),
        "DEBUG",
        "Prefetch request submitted: 9 total keys, 4 L1 prefix hits, 5 remaining for L2",
    ),
    (
        WorkerRegistered(1, "m", 2, "ab", True),
        "INFO",
        "worker registered instance=1 model=m identity=- world_size=2 layout=ab shared_memory=True",
    ),
    (
        WorkerLeft(1, "m##9f86d081884c7d65", "silent"),
        "INFO",
        "worker left instance=1 model=m identity=9f86d081884c7d65 reason=silent",
    ),
    (
        ObjectRejected("fs", "0a", "damaged", "short"),
        "WARNING",
        "objects rejected, not served adapter=fs outcome=damaged objects=1 newest=0a reason=short",
    ),
    (
        StoresDropped("fs", 2, 20, "backlog full"),
        "WARNING",
        "objects will not reach L2 adapter=fs objects=2 bytes=20 reason=backlog full",
    ),
    (ObjectsEvicted("fs", 2, 20, 0.8), "DEBUG", "L2 objects evicted adapter=fs objects=2 bytes=20 used_ratio=0.80"),
    (LeasesExpired(1, 2), "WARNING", "holds passed their deadline dropped_slots=1 quarantined_slots=2"),
    (LeasesExpired(1, 0), "DEBUG", "holds passed their deadline dropped_slots=1 quarantined_slots=0"),
]


@pytest.mark.parametrize(("event", "level", "text"), LINES)
def test_log_lines(event: Event, level: str, text: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        subscriber = open_log_subscriber(None)
        subscriber.subscriptions()[type(event)](event)
        subscriber.close()
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [(level, text)]


def test_debug_events_are_not_asked_for_where_they_would_not_be_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        wanted = set(open_log_subscriber(None).subscriptions())
    assert not wanted & {StoreSubmitted, StoreCompleted, PrefetchSubmitted, ObjectsEvicted}
    assert {WorkerRegistered, StoresDropped} <= wanted
