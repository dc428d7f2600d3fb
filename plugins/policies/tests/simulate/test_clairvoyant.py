"""The baseline against every schedule there is, and against the policies of this folder."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from unittest.mock import patch

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lmcache_policies.simulate import clairvoyant
from lmcache_policies.simulate.clairvoyant import foresee
from lmcache_policies.simulate.replay import BlockSize, Replay
from plugins.policies.tests.simulate.stand_ins import Prompts, core_lru, trace_of


def best_schedule(prompts: Prompts, capacity: int) -> int:
    """The most prefix hits of any schedule: after each request, any choice of what was cached and what it brought."""
    reachable: dict[frozenset[int], int] = {frozenset(): 0}
    for prompt in prompts:
        following: dict[frozenset[int], int] = {}
        for cached, hits in reachable.items():
            found = next((at for at, block in enumerate(prompt) if block not in cached), len(prompt))
            there = sorted(cached | set(prompt))
            for size in range(min(capacity, len(there)) + 1):
                for kept in map(frozenset, combinations(there, size)):
                    following[kept] = max(following.get(kept, 0), hits + found)
        reachable = following
    return max(reachable.values())


@st.composite
def chained(draw: st.DrawFn) -> Prompts:
    """Prompts that share prefixes as hash chains do: a block's number says what is before it."""
    words = draw(st.lists(st.lists(st.integers(0, 1), max_size=3), min_size=1, max_size=6))
    prompts = [[int("1" + "".join(map(str, word[: end + 1]))) for end in range(len(word))] for word in words]
    assume(any(prompts))
    return prompts


free = st.lists(st.lists(st.integers(0, 4), max_size=3, unique=True), min_size=1, max_size=6).filter(any)


@settings(deadline=None, max_examples=100)
@given(prompts=chained(), capacity=st.integers(1, 4), slack=st.sampled_from([1024, -1024]))
def test_it_is_the_optimum_where_blocks_are_chained(
    tmp_path_factory: pytest.TempPathFactory, prompts: Prompts, capacity: int, slack: int
) -> None:
    trace = trace_of(tmp_path_factory.getbasetemp(), prompts)
    assert trace.is_chained()
    with patch.object(clairvoyant, "_SLACK", slack):  # below nothing: its heap is cleared after each request
        foresight = foresee(trace, capacity)
    assert foresight.hits == foresight.at_most == best_schedule(prompts, capacity)


@settings(deadline=None, max_examples=100)
@given(prompts=free, capacity=st.integers(1, 4))
def test_elsewhere_the_optimum_is_between_its_hits_and_its_bound(
    tmp_path_factory: pytest.TempPathFactory, prompts: Prompts, capacity: int
) -> None:
    foresight = foresee(trace_of(tmp_path_factory.getbasetemp(), prompts), capacity)
    assert foresight.hits <= best_schedule(prompts, capacity) <= foresight.at_most


@settings(deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(0, 30), max_size=8, unique=True), max_size=60).filter(any),
    capacity=st.integers(1, 20),
)
@pytest.mark.slow
def test_no_policy_hits_more_than_its_bound(
    tmp_path_factory: pytest.TempPathFactory, prompts: Prompts, capacity: int
) -> None:
    trace = trace_of(tmp_path_factory.getbasetemp(), prompts)
    assert Replay(trace, core_lru(), capacity, BlockSize(1, 1)).run().hits <= foresee(trace, capacity).at_most


def test_a_chain_is_distinguished_from_what_is_none(tmp_path_factory: pytest.TempPathFactory) -> None:
    def is_chained(prompts: Sequence[Sequence[int]]) -> bool:
        return trace_of(tmp_path_factory.getbasetemp(), prompts).is_chained()

    assert is_chained([[1, 2, 3], [1, 2, 4], [5]])
    assert not is_chained([[1, 2], [3, 2]])
    assert not is_chained([[1, 2], [2]])


def test_it_forgets_uses_that_have_passed(tmp_path_factory: pytest.TempPathFactory) -> None:
    """More uses than its heap keeps; each of two blocks is there from its second use on."""
    foresight = foresee(trace_of(tmp_path_factory.getbasetemp(), [[1], [2]] * 3000), 2)
    assert foresight.hits == foresight.at_most == 5998
