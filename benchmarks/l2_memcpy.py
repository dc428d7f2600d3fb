"""A copy between two places in memory, as the measure of what a medium in memory does."""

from __future__ import annotations

from contextlib import ExitStack

from benchmarks.l2_cell import MIB
from benchmarks.l2_lane import Runner
from benchmarks.peer import BenchmarkError
from lmcache_tools.bench.baseline import Baseline
from lmcache_tools.bench.interruption import Interruption
from lmcache_tools.bench.memory import BenchMemory
from lmcache_tools.bench.open_baseline import open_baseline
from lmcache_tools.bench.plan import LOADS, STORES, Plan


def memcpy(
    size_mib: int, depth: int, count: int, memory: BenchMemory, interruption: Interruption, undo: ExitStack
) -> Runner:
    """Closed by `undo`.  Raises BenchmarkError without lmcache-native."""
    plan = Plan((size_mib * MIB,), (depth,), (STORES, LOADS), count * size_mib * MIB, rounds=1)
    lane, describes = open_baseline("memcpy", Baseline(), plan, memory, undo)
    if lane is None:
        raise BenchmarkError(f"a copy in memory was {describes}")
    return Runner(lane, depth, interruption)
