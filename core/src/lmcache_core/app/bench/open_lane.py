"""Opens an adapter to be measured, as a server does."""

from __future__ import annotations

import logging
import mmap
import uuid
from contextlib import ExitStack
from typing import Final

from lmcache_core.app.adapter_specs import AdapterSpec
from lmcache_core.app.bench.adapter_lane import AdapterLane
from lmcache_core.app.bench.memory import BenchMemory
from lmcache_core.app.open_serdes import open_spec
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.contracts.buffers import MemoryRegion
from lmcache_core.contracts.clock import SystemClock
from lmcache_core.contracts.context import AdapterContext
from lmcache_core.contracts.events import Event
from lmcache_core.model.layout import ObjectLayout
from lmcache_core.serde.known_layouts import KnownLayouts

logger = logging.getLogger(__name__)

CLOSE_SECONDS: Final = 10.0


def open_lane(
    spec: AdapterSpec, plugins: LoadedPlugins, memory: BenchMemory, patience_seconds: float, undo: ExitStack
) -> AdapterLane:
    """`undo` deletes what was stored, as far as the adapter can, and closes it.  The memory must outlive that.  Raises
    LMCacheError when it cannot be opened."""
    context = _context(spec.name, memory.arena.region)
    adapter = open_spec(spec, plugins, context, _BenchLayouts())
    lane = AdapterLane(spec.name, adapter, patience_seconds)
    undo.callback(_close, lane, memory)
    return lane


def _close(lane: AdapterLane, memory: BenchMemory) -> None:
    try:
        lane.clear()
    finally:
        lane.adapter.close(CLOSE_SECONDS)
        lane.ended()
        if not lane.is_quiet:
            memory.is_lent = True
            logger.warning("l2 adapter has not given its buffers back adapter=%s", lane.name)


class _BenchLayouts(KnownLayouts):
    """Every payload of an even length is one of bfloat16, so that serdes which are made for numbers have some."""

    def elements(self, fingerprint: bytes, payload_bytes: int) -> ObjectLayout | None:
        return ObjectLayout(1, 1, 1, payload_bytes // 2, "bfloat16") if payload_bytes % 2 == 0 else None


class _Nobody:
    """Events of a measurement are nobody's."""

    def publish(self, event: Event) -> None:
        pass

    def wants(self, kind: type[Event]) -> bool:
        return False


def _context(name: str, region: MemoryRegion) -> AdapterContext:
    return AdapterContext(
        name=name,
        instance_id="lmcache-bench",
        boot_id=uuid.uuid4().hex,
        regions=(region,),
        align_bytes=mmap.PAGESIZE,
        clock=SystemClock(),
        events=_Nobody(),
        logger=logging.getLogger(f"lmcache.l2.{name}"),
    )
