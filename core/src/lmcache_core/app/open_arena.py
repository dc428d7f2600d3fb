"""L1's memory as the settings ask for it, or the next best with a warning that names the remedy."""

from __future__ import annotations

import logging

from lmcache_core.app.settings import ServerSettings
from lmcache_core.contracts.clock import Clock
from lmcache_core.l1.arena import Arena, anonymous_arena, remove_stale_segments, shared_arena, shared_memory_shortage
from lmcache_core.l1.growth import Growth
from lmcache_core.l1.memory_calls import bind_memory
from lmcache_core.l1.numa import choose_placement, memory_nodes

logger = logging.getLogger(__name__)

_GIB, _MIB = 2**30, 2**20


def open_arena(settings: ServerSettings, boot_id: str) -> Arena:
    """The caller closes it.  Raises ResourceError when there is no memory to be had, or not the node asked for."""
    placement = choose_placement(settings.l1_numa, memory_nodes())
    arena = _memory(settings, boot_id)
    if placement is not None:
        try:
            bind_memory(arena.region.address, arena.size_bytes, placement.mode, placement.nodes)
        except OSError as error:
            logger.warning("l1 lies where the kernel puts it, not as --l1-numa asks for reason=%s", error.strerror)
    return arena


def open_growth(settings: ServerSettings, arena: Arena, clock: Clock) -> Growth:
    """Allocates all of L1, or what is to be there at the start."""
    start = int(settings.l1_init_size_gb * _GIB) if settings.l1_use_lazy else arena.size_bytes
    return Growth(arena, start, clock)


def _memory(settings: ServerSettings, boot_id: str) -> Arena:
    size = max(_MIB, int(settings.l1_size_gb * _GIB) // settings.l1_align_bytes * settings.l1_align_bytes)
    if not settings.l1_shared_memory:
        return anonymous_arena(size, settings.l1_use_hugepages)
    remove_stale_segments()
    if shortage := shared_memory_shortage(size):
        logger.warning("l1 is not shared memory, engines get their chunks over the engine port reason=%s", shortage)
        return anonymous_arena(size, settings.l1_use_hugepages)
    return shared_arena(size, settings.shm_name or boot_id, settings.l1_use_hugepages)
