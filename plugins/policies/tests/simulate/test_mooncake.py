"""Known figures of a public trace.

The trace is "conversation" of Mooncake (FAST 2025), https://github.com/kvcache-ai/Mooncake; name the file in
LMCACHE_MOONCAKE_TRACE.  The figures were computed by another program, which touched all blocks of a request from its tail.
"""

from __future__ import annotations

import os

import pytest

from lmcache_policies.simulate.capacity import capacities, parse_wishes
from lmcache_policies.simulate.clairvoyant import foresee
from lmcache_policies.simulate.replay import BlockSize, Replay
from lmcache_policies.simulate.trace import Trace
from lmcache_policies.simulate.trace_file import read_trace
from plugins.policies.tests.simulate.stand_ins import core_lru

PATH = os.environ.get("LMCACHE_MOONCAKE_TRACE")
pytestmark = pytest.mark.skipif(not PATH, reason="LMCACHE_MOONCAKE_TRACE does not name the trace")


@pytest.fixture(scope="module")
def trace() -> Trace:
    assert PATH
    return read_trace(PATH)


def test_it_is_the_trace(trace: Trace) -> None:
    assert (trace.requests, len(trace.blocks), trace.distinct) == (12_031, 288_500, 182_790)
    assert trace.is_chained()


@pytest.mark.parametrize(
    ("share", "lru", "optimum"), [("2%", 7.9, 31.4), ("5%", 19.6, 36.6), ("10%", 27.9, 36.6), ("20%", 34.5, 36.6)]
)
def test_known_hit_rates(trace: Trace, share: str, lru: float, optimum: float) -> None:
    capacity = capacities(parse_wishes(share), trace.distinct, None)[0].blocks
    replayed = Replay(trace, core_lru(), capacity, BlockSize(1, 512)).run()
    assert round(100 * replayed.hits / len(trace.blocks), 1) == lru
    assert replayed.behind_gap <= 15
    foresight = foresee(trace, capacity)
    assert round(100 * foresight.hits / len(trace.blocks), 1) == optimum
    assert foresight.hits == foresight.at_most
