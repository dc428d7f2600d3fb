"""Harnesses of an eviction of L2, closed after each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from lmcache_core.contracts.policies import EvictionPolicy
from plugins.policies.tests.l2_eviction.eviction_harness import EvictionHarness


@pytest.fixture
def open_harness() -> Iterator[Callable[..., EvictionHarness]]:
    harnesses: list[EvictionHarness] = []

    def start(policy: EvictionPolicy | None = None) -> EvictionHarness:
        harnesses.append(EvictionHarness(policy))
        return harnesses[-1]

    yield start
    for harness in harnesses:
        harness.adapter.close(0)
        harness.inbox.close()


@pytest.fixture
def eviction_harness(open_harness: Callable[..., EvictionHarness]) -> EvictionHarness:
    return open_harness()
