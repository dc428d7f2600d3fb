"""Opens the memory of L1: core's own as the settings ask for it, or the next best with a warning that names the remedy; or
that of a plugin."""

from __future__ import annotations

import logging
import mmap
from pathlib import Path, PurePosixPath
from typing import Any, Final

from lmcache_client.errors import ResourceError
from lmcache_client.memory_calls import bind_memory
from lmcache_core.app.plugins.discovery import Candidate
from lmcache_core.app.plugins.plugin_fault import describe
from lmcache_core.app.settings import ServerSettings
from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.l1_memory import L1Memory, L1MemoryContext, MemoryRegion
from lmcache_core.l1.arena import (
    Arena,
    Preallocation,
    anonymous_arena,
    remove_stale_segments,
    shared_arena,
    shared_memory_shortage,
)
from lmcache_core.l1.pages import choose_placement, memory_nodes
from lmcache_core.model.errors import PluginContractError

logger = logging.getLogger(__name__)

_GIB, _MIB = 2**30, 2**20
PROCESS_BYTES: Final = 128 * 2**20
"""What the server needs beside L1, at least: one without adapters and without work has 55 MiB."""
_V1: Final = "sys/fs/cgroup/memory"
_ROOT: Final = Path("/")
_NO_LIMIT: Final = 2**60
"""Version 1 says a very large number where there is no limit."""


def size_bytes(settings: ServerSettings) -> int:
    """How large L1 is."""
    return max(_MIB, int(settings.l1_size_gb * _GIB) // settings.l1_align_bytes * settings.l1_align_bytes)


def open_arena(settings: ServerSettings, boot_id: str, root: Path = _ROOT) -> Arena:
    """L1 in core's own memory.  The caller closes it.  Raises ResourceError when the system refuses the memory or has no
    such memory node, and without `l1_overcommit` where L1 can never be in memory as a whole."""
    if reason := overcommit(size_bytes(settings), root):
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


def open_preallocation(settings: ServerSettings, arena: Arena, clock: Clock) -> Preallocation:
    """Allocates all of L1, or what is to be there at the start."""
    start = int(settings.l1_init_size_gb * _GIB) if settings.l1_use_lazy else arena.size_bytes
    return Preallocation(arena, start, clock)


def arena_of(memory: L1Memory, context: L1MemoryContext, plugin: Candidate) -> Arena:
    """L1 in the memory of a plugin, which is closed when it is not as the contract says.  Raises PluginContractError then."""
    fault = _fault(memory, context)
    if fault is not None:
        try:
            memory.close()
        except (Exception, SystemExit):  # what is half made cannot always be closed
            logger.debug("l1 memory failed to close plugin=%s", plugin.name, exc_info=True)
        raise PluginContractError(plugin.name, f"L1 memory of plugin '{plugin.name}' ({plugin.owner}): {fault}")
    arena = Arena(memory)
    logger.info(
        "l1 is a %s, engines %s path=%s gib=%.2f direct_io=%s",
        arena.kind,
        "map it" if arena.segment else "get their chunks over the engine port",
        arena.file,
        arena.size_bytes / _GIB,
        "device copies" if arena.region.direct_io else "none",
    )
    return arena


def _fault(memory: Any, context: L1MemoryContext) -> str | None:
    try:
        region, kind, _, _ = memory.region, memory.kind, memory.path, memory.is_lazy
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin boundary
        return f"it cannot be read: {describe(error)}"
    if not isinstance(region, MemoryRegion):
        return f"its region is a {type(region).__name__}, not a MemoryRegion"
    if not region.length == len(region.view) == context.size_bytes:
        return (
            f"its region has {region.length} bytes and a view of {len(region.view)}, not {context.size_bytes} in both"
        )
    if region.view.readonly or region.view.itemsize != 1 or region.address % mmap.PAGESIZE:
        return "its region must be writable bytes that begin at a page"
    if not (isinstance(kind, str) and kind.isidentifier()):
        return f"its kind is {kind!r}, not a word such as file"
    return None


def _memory(settings: ServerSettings, boot_id: str) -> Arena:
    size = size_bytes(settings)
    if not settings.l1_shared_memory:
        return anonymous_arena(size, settings.l1_use_hugepages)
    remove_stale_segments()
    if shortage := shared_memory_shortage(size):
        logger.warning("l1 is not shared memory, engines get their chunks over the engine port reason=%s", shortage)
        return anonymous_arena(size, settings.l1_use_hugepages)
    return shared_arena(size, settings.shm_name or boot_id, settings.l1_use_hugepages)


def memory_limit(root: Path) -> int | None:
    """The least memory limit of this process's control groups, version 1 or 2, in bytes; None without one.  `root` is where
    /proc and /sys are."""
    limits = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers and "memory" not in controllers.split(","):
            continue
        base, name = ("sys/fs/cgroup", "memory.max") if not controllers else (_V1, "memory.limit_in_bytes")
        inner = PurePosixPath(path.lstrip("/"))
        for folder in (inner, *inner.parents):
            text = _text(root / base / folder / name).strip()
            if text.isdigit() and int(text) < _NO_LIMIT:
                limits.append(int(text))
    return min(limits, default=None)


def overcommit(l1_bytes: int, root: Path) -> str | None:
    """Why L1 of this size and the server can never be in memory together, and what to do, in one line; None where they can, or
    where the machine does not say."""
    limit, total = memory_limit(root), _memory_total(root)
    usable = min((each for each in (limit, total) if each is not None), default=None)
    if usable is None or l1_bytes + PROCESS_BYTES <= usable:
        return None
    owner, remedy = (
        (f"the control group may use {_size(usable)} (shared memory counts, too)", "raise the container's memory limit")
        if usable == limit
        else (f"the machine has {_size(usable)} of memory", "use a larger machine")
    )
    fitting = int((usable - PROCESS_BYTES) / 2**30 * 100) / 100
    lower = f"lower l1_size_gb to {fitting:g} or less, " if fitting > 0 else ""
    return (
        f"L1 of {_size(l1_bytes)} and the server itself ({_size(PROCESS_BYTES)}) need more than there is: {owner}, and "
        f"the kernel would end the server when L1 fills; {lower}{remedy}, or give --l1-overcommit"
    )


def _memory_total(root: Path) -> int | None:
    lines = _text(root / "proc/meminfo").splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:")), None)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.3g} GiB" if size_bytes >= 2**30 else f"{size_bytes / 2**20:.3g} MiB"
