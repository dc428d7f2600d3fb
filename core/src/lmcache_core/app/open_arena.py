"""L1's memory as the settings ask for it, or the next best with a warning that names the remedy."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from lmcache_client.errors import ResourceError
from lmcache_client.memory_calls import bind_memory
from lmcache_core.app.machine import Machine
from lmcache_core.app.memory_room import overcommit
from lmcache_core.app.settings import ServerSettings
from lmcache_core.contracts.clock import Clock
from lmcache_core.l1.arena import (
    Arena,
    Preallocation,
    anonymous_arena,
    remove_stale_segments,
    shared_arena,
    shared_memory_shortage,
)
from lmcache_core.l1.file_arena import file_arena
from lmcache_core.l1.pages import choose_placement, memory_nodes

logger = logging.getLogger(__name__)

_GIB, _MIB = 2**30, 2**20


def open_arena(settings: ServerSettings, boot_id: str, instance_id: str = "", machine: Machine | None = None) -> Arena:
    """The caller closes it.  Raises ResourceError when there is no memory to be had, or not the node or the file asked
    for, and without `l1_overcommit` where L1 can never be in memory as a whole."""
    if settings.gds_l1_path:
        return _file(settings, settings.gds_l1_path, {"instance_id": instance_id, "boot_id": boot_id})
    if reason := overcommit(_size_bytes(settings), machine or Machine()):
        if not settings.l1_overcommit:
            raise ResourceError(f"l1_size_gb: {reason}")
        logger.warning("l1 is larger than its memory, as --l1-overcommit allows reason=%s", reason)
    placement = choose_placement(settings.l1_numa, memory_nodes())
    arena = _memory(settings, boot_id)
    if placement is not None:
        try:
            bind_memory(arena.region.address, arena.size_bytes, placement.mode, placement.nodes)
        except OSError as error:
            logger.warning("l1 lies where the kernel puts it, not as --l1-numa asks for reason=%s", error.strerror)
    return arena


def open_growth(settings: ServerSettings, arena: Arena, clock: Clock) -> Preallocation:
    """Allocates all of L1, or what is to be there at the start."""
    start = int(settings.l1_init_size_gb * _GIB) if settings.l1_use_lazy else arena.size_bytes
    return Preallocation(arena, start, clock)


def _file(settings: ServerSettings, path: str, owner: Mapping[str, object]) -> Arena:
    if path.endswith("/") and not Path(path).is_dir():
        raise ResourceError(
            f"gds_l1_path: '{path}' is no folder; make it, or mount it, or leave out the slash for a file"
        )
    arena = file_arena(_size_bytes(settings), Path(path), owner, settings.gds_l1_use_direct_io)
    logger.info(
        "l1 is a file, engines get their chunks over the engine port path=%s gib=%.2f direct_io=%s",
        arena.file,
        arena.size_bytes / _GIB,
        "device copies" if arena.region.direct_io else "none",
    )
    return arena


def _size_bytes(settings: ServerSettings) -> int:
    return max(_MIB, int(settings.l1_size_gb * _GIB) // settings.l1_align_bytes * settings.l1_align_bytes)


def _memory(settings: ServerSettings, boot_id: str) -> Arena:
    size = _size_bytes(settings)
    if not settings.l1_shared_memory:
        return anonymous_arena(size, settings.l1_use_hugepages)
    remove_stale_segments()
    if shortage := shared_memory_shortage(size):
        logger.warning("l1 is not shared memory, engines get their chunks over the engine port reason=%s", shortage)
        return anonymous_arena(size, settings.l1_use_hugepages)
    return shared_arena(size, settings.shm_name or boot_id, settings.l1_use_hugepages)
