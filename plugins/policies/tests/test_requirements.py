"""Every policy of this distribution against the conformance kit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from lmcache_devkit.eviction_suite import EvictionPolicySuite
from lmcache_devkit.prefetch_policy_suite import PrefetchPolicySuite
from lmcache_devkit.store_policy_suite import StorePolicySuite


class TestArc(EvictionPolicySuite):
    offer = "ARC"


class TestFifo(EvictionPolicySuite):
    offer = "FIFO"
    bytes_per_slot_max = 80


class TestIsolatedLru(EvictionPolicySuite):
    offer = "IsolatedLRU"
    bytes_per_slot_max = 80


class TestLeastHitDensity(EvictionPolicySuite):
    offer = "LeastHitDensity"
    bytes_per_slot_max = 150


class TestLfu(EvictionPolicySuite):
    offer = "LFU"
    bytes_per_slot_max = 100


@pytest.mark.slow
class TestLfuWithoutHalving(EvictionPolicySuite):
    offer = "LFU"

    @pytest.fixture
    def settings(self) -> Mapping[str, Any]:
        return {"halving_hits_per_object": 0}


class TestMru(EvictionPolicySuite):
    offer = "MRU"
    bytes_per_slot_max = 80


class TestNoop(EvictionPolicySuite):
    offer = "noop"
    bytes_per_slot_max = 20


class TestS3Fifo(EvictionPolicySuite):
    offer = "S3FIFO"


@pytest.mark.slow
class TestS3FifoHalf(EvictionPolicySuite):
    offer = "S3FIFO"

    @pytest.fixture
    def settings(self) -> Mapping[str, Any]:
        return {"small_share": 0.5, "promotion_hits": 1}


class TestSieve(EvictionPolicySuite):
    offer = "SIEVE"
    bytes_per_slot_max = 80


class TestSlru(EvictionPolicySuite):
    offer = "SLRU"
    bytes_per_slot_max = 80


@pytest.mark.slow
class TestSlruMostlyProbation(EvictionPolicySuite):
    offer = "SLRU"

    @pytest.fixture
    def settings(self) -> Mapping[str, Any]:
        return {"protected_share": 0.1}


class TestWTinyLfu(EvictionPolicySuite):
    offer = "W-TinyLFU"


@pytest.mark.slow
class TestWTinyLfuLargeWindow(EvictionPolicySuite):
    offer = "W-TinyLFU"

    @pytest.fixture
    def settings(self) -> Mapping[str, Any]:
        return {"window_share": 0.5, "protected_share": 0.5}


class TestSkipL1(StorePolicySuite):
    offer = "skip_l1"


class TestSecondUse(StorePolicySuite):
    offer = "second_use"


class TestSecondUseBehindAFastAdapter(StorePolicySuite):
    offer = "second_use"

    @pytest.fixture
    def settings(self) -> Mapping[str, Any]:
        return {"first_slow_adapter": 1, "remembered_objects": 1024}


class TestRetain(PrefetchPolicySuite):
    offer = "retain"
