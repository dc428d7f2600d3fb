"""Mooncake's own batch calls on registered memory, as the measure of what a Mooncake Store does."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Final

from benchmarks.l2_cell import Speed
from benchmarks.peer import BenchmarkError
from lmcache_client.errors import LMCacheError
from lmcache_l2_mooncake.store_client import Span, StoreClient, Transfer
from lmcache_tools.bench.lane import Step, Verb
from lmcache_tools.bench.memory import BenchMemory

_PREFIX: Final = "bare/"


class BareMooncake:
    """`depth` objects in each call, one call behind the other, and nothing around it."""

    name: Final = "batch calls"

    def __init__(self, client: StoreClient, depth: int) -> None:
        self._client = client
        self._depth = depth
        self._stored: set[str] = set()

    def run(self, steps: Sequence[Step]) -> Speed:
        """Raises BenchmarkError when an object is not moved whole."""
        runs = [self._transfers(steps[at : at + self._depth]) for at in range(0, len(steps), self._depth)]
        moved = sum(each.length for run in runs for each in run)
        stores = steps[0].verb is Verb.STORE
        call = self._client.put if stores else self._client.get
        cpu, began = time.process_time(), time.perf_counter()
        answers = [call(run) for run in runs]
        seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
        for run, codes in zip(runs, answers, strict=True):
            self._check(run, codes, stores)
        return Speed(moved / seconds / 1e9, cpu_seconds / (moved / 1e9))

    def clear(self) -> None:
        self._client.remove(sorted(self._stored))
        self._stored.clear()

    def _transfers(self, steps: Sequence[Step]) -> list[Transfer]:
        return [Transfer(_PREFIX + step.key.object_id.hex(), step.buffer.address, step.buffer.length) for step in steps]

    def _check(self, run: Sequence[Transfer], codes: Sequence[int], stores: bool) -> None:
        if stores:
            self._stored.update(each.name for each in run)
        for each, code in zip(run, codes, strict=True):
            if code != (0 if stores else each.length):
                verb = "storing" if stores else "loading"
                raise BenchmarkError(f"{self.name}: {verb} {each.length} bytes was answered with {code}")


def bare_mooncake(setup: Mapping[str, str], depth: int, memory: BenchMemory, undo: ExitStack) -> BareMooncake:
    """A member of the store that `setup` names, with all of this memory registered; it leaves in `undo`.  Raises
    BenchmarkError."""
    region = memory.arena.region
    try:
        client = StoreClient.open(
            setup, [Span(region.address, region.length)], needs_memory=True, logger=logging.getLogger(__name__)
        )
    except LMCacheError as error:
        raise BenchmarkError(f"{BareMooncake.name}: {error}") from None
    undo.callback(client.close)
    return BareMooncake(client, depth)
