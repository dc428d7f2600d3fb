"""Opens what an adapter is compared with."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import replace
from typing import NamedTuple

from lmcache_tools.bench.baseline import Baseline
from lmcache_tools.bench.io_engine import IoLibrary, io_library
from lmcache_tools.bench.medium import Medium, file_medium, memory_medium, takes_direct
from lmcache_tools.bench.medium_lane import MediumLane, medium_lane
from lmcache_tools.bench.memory import BenchMemory
from lmcache_tools.bench.plan import Plan


class Opened(NamedTuple):
    lane: MediumLane | None
    describes: str
    """What is measured, or why nothing is."""


def open_baseline(name: str, asked: Baseline, plan: Plan, memory: BenchMemory, undo: ExitStack) -> Opened:
    """A lane that is called `name`, closed by `undo`.  `memory` is what will be borrowed to it, and must outlive it.  Raises
    ResourceError when the medium is not available."""
    library = io_library()
    if asked.reason is None and isinstance(library, str):
        asked = replace(asked, reason=library)
    if asked.reason is not None or isinstance(library, str):
        return Opened(None, f"not measured: {asked.reason}")
    if asked.folder is not None and asked.is_direct and not takes_direct(asked.folder):
        asked = replace(asked, is_direct=False)
    medium = _medium(asked, library, plan, undo)
    depth = max(plan.depths)
    workers = depth if asked.folder is not None else min(depth, os.cpu_count() or 1)
    engine = library.engine(asked.engine, workers, depth, depth * max(plan.sizes))
    lane = undo.enter_context(medium_lane(name, medium, engine, memory))
    engine.register_memory(memory.arena.region.address, memory.arena.region.length)
    return Opened(lane, f"{_describes(asked)}; engine {engine.kind}")


def _medium(asked: Baseline, library: IoLibrary, plan: Plan, undo: ExitStack) -> Medium:
    if asked.folder is None:
        return undo.enter_context(memory_medium(library, plan.stored_bytes))
    return undo.enter_context(file_medium(library, asked.folder, asked.is_direct, asked.is_fresh))


def _describes(asked: Baseline) -> str:
    if asked.folder is None:
        return "a copy from memory to memory"
    how = "past the page cache (O_DIRECT)" if asked.is_direct else "through the page cache"
    what = "a file that is written anew in each round" if asked.is_fresh else "a file that is written over"
    return f"{what}, in {asked.folder}, {how}"
