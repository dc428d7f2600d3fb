"""Opens an adapter to be measured, as a server does."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

from lmcache_core.app.adapter_specs import AdapterSpec
from lmcache_core.app.open_l2 import open_spec
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_tools.bench.adapter_lane import AdapterLane
from lmcache_tools.bench.memory import BenchMemory
from lmcache_tools.lone_context import lone_context
from lmcache_tools.number_layouts import NumberLayouts

logger = logging.getLogger(__name__)

CLOSE_SECONDS: Final = 10.0


def open_lane(
    spec: AdapterSpec,
    plugins: LoadedPlugins,
    memory: BenchMemory,
    patience_seconds: float,
    undo: ExitStack,
    sizes: Sequence[int] = (),
) -> AdapterLane:
    """`undo` deletes what was stored, as far as the adapter can, and closes it.  The memory must outlive that.  Raises
    LMCacheError when it cannot be opened, or its serdes take no objects of one of these sizes."""
    context = lone_context(spec.name, "lmcache-bench", memory.arena.region)
    layouts = NumberLayouts()
    adapter = open_spec(spec, plugins, context, layouts)
    lane = AdapterLane(spec.name, adapter, patience_seconds)
    undo.callback(_close, lane, memory)
    layouts.suit(spec.name, adapter, sizes)
    return lane


def _close(lane: AdapterLane, memory: BenchMemory) -> None:
    try:
        lane.clear()
    finally:
        lane.adapter.close(CLOSE_SECONDS)
        lane.ended()
        if not lane.is_quiet:
            memory.is_borrowed = True
            logger.warning("l2 adapter has not given its buffers back adapter=%s", lane.name)
