"""An adapter opened for the L2 benchmark, with memory like L1's and objects to move."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.l2_cell import Speed
from benchmarks.l2_subjects import Settings
from benchmarks.peer import BenchmarkError
from lmcache_core.app.adapter_specs import adapter_specs
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_tools.bench.adapter_lane import AdapterLane
from lmcache_tools.bench.interruption import Interruption
from lmcache_tools.bench.lane import BenchFailedError, Lane, Step
from lmcache_tools.bench.memory import BenchMemory, bench_memory
from lmcache_tools.bench.open_lane import open_lane
from lmcache_tools.bench.traffic import Traffic

PATIENCE_SECONDS: Final = 60.0
_DROP_CACHES: Final = Path("/proc/sys/vm/drop_caches")


class OpenedLane(NamedTuple):
    lane: AdapterLane
    memory: BenchMemory


@contextmanager
def opened(settings: Settings, plugins: LoadedPlugins, memory_bytes: int) -> Iterator[OpenedLane]:
    """Deletes what was stored, and closes all, at the end.  Raises LMCacheError."""
    (spec,) = adapter_specs([settings], plugins)
    with ExitStack() as undo:
        memory = undo.enter_context(bench_memory(memory_bytes))
        yield OpenedLane(open_lane(spec, plugins, memory, PATIENCE_SECONDS, undo), memory)


class Runner:
    """Any lane, in a closed loop."""

    def __init__(self, lane: Lane, depth: int, interruption: Interruption) -> None:
        self.name: Final = lane.name
        self._lane = lane
        self._traffic = Traffic(depth, PATIENCE_SECONDS, interruption)

    def run(self, steps: Sequence[Step]) -> Speed:
        """Raises BenchmarkError when a step fails, KeyboardInterrupt when it was interrupted."""
        try:
            sample = self._traffic.run(self._lane, steps)
        except BenchFailedError as error:
            raise BenchmarkError(str(error)) from None
        if sample is None:
            raise KeyboardInterrupt
        return Speed(sample.bytes_per_second / 1e9, sample.cpu_seconds_per_gb)

    def clear(self) -> None:
        self._lane.clear()


def may_drop_cache() -> bool:
    return os.access(_DROP_CACHES, os.W_OK)


def settle(drops_cache: bool) -> None:
    """Nothing of what was written before is on its way to the disk any more; with `drops_cache` the page cache of the whole
    machine is empty."""
    os.sync()
    if drops_cache:
        _DROP_CACHES.write_text("1")
