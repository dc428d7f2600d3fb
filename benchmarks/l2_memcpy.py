"""A copy between two places in memory, as the measure of what a medium in memory does."""

from __future__ import annotations

from contextlib import ExitStack

from benchmarks.l2_cell import MIB
from benchmarks.l2_lane import Runner
from benchmarks.peer import BenchmarkError
from lmcache_tools.bench.interruption import Interruption
from lmcache_tools.bench.memory import BenchMemory
from lmcache_tools.bench.open_yardstick import open_yardstick
from lmcache_tools.bench.plan import LOADS, STORES, Plan
from lmcache_tools.bench.yardstick import Yardstick


def memcpy(
    size_mib: int, depth: int, count: int, memory: BenchMemory, interruption: Interruption, undo: ExitStack
) -> Runner:
    """Closed by `undo`.  Raises BenchmarkError without lmcache-native."""
    plan = Plan((size_mib * MIB,), (depth,), (STORES, LOADS), count * size_mib * MIB, rounds=1)
    lane, describes = open_yardstick("memcpy", Yardstick(), plan, memory, undo)
    if lane is None:
        raise BenchmarkError(f"a copy in memory was {describes}")
    return Runner(lane, depth, interruption)
