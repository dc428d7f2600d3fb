"""Where the settings of an L1 memory have a `path`: the folder, the file system, the free space."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from lmcache_tools.doctor.check_context import CheckContext
from lmcache_tools.doctor.mounts import MEMORY, NETWORK, mount_of
from lmcache_tools.doctor.probe_result import Level, ProbeResult
from lmcache_tools.quantities import size_text

_PROBE: Final = "L1 file"
_COPIES_ON_WRITE: Final = frozenset(("btrfs", "zfs", "bcachefs"))


def l1_file(context: CheckContext) -> Iterator[ProbeResult]:
    memory = context.l1_memory
    if memory is None or not (given := getattr(memory.settings, "path", None)):
        return
    path = Path(given).absolute()
    folder = path if path.is_dir() else path.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        text = f"{folder} is not a folder that this user may write to"
        yield ProbeResult(_PROBE, Level.FAIL, text, "make it, and let this user write to it", f"mkdir -p {folder}")
        return
    mount = mount_of(context.machine, folder.resolve())
    kind = mount.kind if mount else "unknown"
    free = context.machine.free_bytes(folder)
    facts = {"path": str(path), "file_system": kind, "free_bytes": free, "l1_bytes": context.l1_bytes}
    left = path.stat().st_size if path.is_file() else 0  # of a server that was killed; it is given back first
    if free is not None and free + left < context.l1_bytes:
        text = (
            f"{folder} has {size_text(free)} free, less than the {size_text(context.l1_bytes)} of L1: it will not start"
        )
        yield ProbeResult(_PROBE, Level.FAIL, text, "make room, use another disk, or lower --l1-size-gb", "", facts)
    elif kind in MEMORY:
        text = f"{folder} is on {kind}, which is memory"
        yield ProbeResult(_PROBE, Level.WARN, text, "leave it out: L1 in memory serves engines faster", "", facts)
    elif kind in NETWORK:
        text = f"{folder} is on {kind}: a stall there stalls requests, and a fault ends the server"
        yield ProbeResult(_PROBE, Level.WARN, text, "use a disk of this machine", "", facts)
    elif kind in _COPIES_ON_WRITE:
        text = f"{folder} is on {kind}, which copies what is overwritten: a full disk may end the server"
        yield ProbeResult(_PROBE, Level.WARN, text, "use ext4 or xfs", "", facts)
    else:
        text = f"{folder} ({kind}) has room for L1; engines get their chunks over the engine port"
        yield ProbeResult(_PROBE, Level.OK, text, facts=facts)
