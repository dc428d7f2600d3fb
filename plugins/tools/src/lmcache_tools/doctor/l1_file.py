"""Where the settings of an L1 memory have a `path`: the folder, the file system, the free space."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from lmcache_core.app.console.quantities import size_text
from lmcache_tools.doctor.case import Case
from lmcache_tools.doctor.finding import Finding, Level
from lmcache_tools.doctor.mounts import MEMORY, NETWORK, mount_of

_PROBE: Final = "L1 file"
_COPIES_ON_WRITE: Final = frozenset(("btrfs", "zfs", "bcachefs"))


def l1_file(case: Case) -> Iterator[Finding]:
    memory = case.l1_memory
    if memory is None or not (given := getattr(memory.settings, "path", None)):
        return
    path = Path(given).absolute()
    folder = path if path.is_dir() else path.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        text = f"{folder} is not a folder that this user may write to"
        yield Finding(_PROBE, Level.FAIL, text, "make it, and let this user write to it", f"mkdir -p {folder}")
        return
    mount = mount_of(case.machine, folder.resolve())
    kind = mount.kind if mount else "unknown"
    free = case.machine.free_bytes(folder)
    facts = {"path": str(path), "file_system": kind, "free_bytes": free, "l1_bytes": case.l1_bytes}
    left = path.stat().st_size if path.is_file() else 0  # of a server that was killed; it is given back first
    if free is not None and free + left < case.l1_bytes:
        text = f"{folder} has {size_text(free)} free, less than the {size_text(case.l1_bytes)} of L1: it will not start"
        yield Finding(_PROBE, Level.FAIL, text, "make room, use another disk, or lower --l1-size-gb", "", facts)
    elif kind in MEMORY:
        text = f"{folder} is on {kind}, which is memory"
        yield Finding(_PROBE, Level.WARN, text, "leave it out: L1 in memory serves engines faster", "", facts)
    elif kind in NETWORK:
        text = f"{folder} is on {kind}: a stall there stalls requests, and a fault ends the server"
        yield Finding(_PROBE, Level.WARN, text, "use a disk of this machine", "", facts)
    elif kind in _COPIES_ON_WRITE:
        text = f"{folder} is on {kind}, which copies what is overwritten: a full disk may end the server"
        yield Finding(_PROBE, Level.WARN, text, "use ext4 or xfs", "", facts)
    else:
        text = f"{folder} ({kind}) has room for L1; engines get their chunks over the engine port"
        yield Finding(_PROBE, Level.OK, text, facts=facts)
