"""The requirements of a prefetch policy, as tests.  A distribution runs them with two lines:

class TestMine(PrefetchPolicySuite):
    offer = "mine"
"""

from __future__ import annotations

import random

import pytest

from lmcache_core.contracts.policies import AdapterFacts, PrefetchPolicy
from lmcache_core.model.results import Bitmap
from lmcache_devkit.offer_under_test import OfferSuite, OpenableOffer
from lmcache_devkit.store_policy_suite import adapter_rows

KEYS = 24


class PrefetchPolicySuite(OfferSuite):
    """Set `offer`."""

    kind = "prefetch_policy"

    @pytest.fixture
    def policy(self, under_test: OpenableOffer) -> PrefetchPolicy:
        policy: PrefetchPolicy = under_test.open()
        assert isinstance(policy, PrefetchPolicy)
        return policy

    @pytest.mark.parametrize("filled", [0.0, 0.3, 1.0])
    def test_sources_are_healthy_adapters_that_have_the_key(self, policy: PrefetchPolicy, filled: float) -> None:
        for adapters, found in cases(filled):
            sources = policy.plan(found, adapters).sources
            assert len(sources) == (KEYS if found else 0), f"{len(sources)} entries for {KEYS} keys"
            for key, source in enumerate(sources):
                if source is None:
                    continue
                assert 0 <= source < len(adapters), f"adapter {source} of {len(adapters)} was named"
                assert adapters[source].healthy, f"adapter {source} is not healthy"
                assert key in found[source], f"adapter {source} does not have key {key}"

    @pytest.mark.parametrize("filled", [0.3, 1.0])
    def test_something_is_loaded_where_a_healthy_adapter_has_everything(
        self, policy: PrefetchPolicy, filled: float
    ) -> None:
        for adapters, found in cases(filled):
            complete = [index for index, bits in enumerate(found) if len(bits) == KEYS and adapters[index].healthy]
            if complete:
                assert any(source is not None for source in policy.plan(found, adapters).sources)

    def test_nothing_is_planned_for_no_keys_or_no_adapters(self, policy: PrefetchPolicy) -> None:
        assert policy.plan([], []).sources == ()
        for adapters in adapter_rows():
            assert policy.plan([Bitmap(0) for _ in adapters], adapters).sources == ()

    def test_what_was_found_is_not_changed(self, policy: PrefetchPolicy) -> None:
        for adapters, found in cases(0.3):
            before = [list(bits) for bits in found]
            policy.plan(found, adapters)
            assert [list(bits) for bits in found] == before


def cases(filled: float) -> list[tuple[tuple[AdapterFacts, ...], list[Bitmap]]]:
    """Every state of health of up to three adapters, each of which has this part of the keys."""
    numbers = random.Random(7)
    return [
        (adapters, [Bitmap(KEYS, [key for key in range(KEYS) if numbers.random() < filled]) for _ in adapters])
        for adapters in adapter_rows()
    ]
