"""Where the offer of an L1 memory says that settings of it name folders: the folder, the file system, the free space."""

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
    if memory is None:
        return
    facts = case.plugins.offer(memory.kind, memory.name).storage
    for name in facts.folders if facts else ():
        if given := getattr(memory.settings, name, None):
            yield _look(case, Path(given).absolute())


def _look(case: Case, path: Path) -> Finding:
    folder = path if path.is_dir() else path.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        text = f"{folder} is no folder that this user may write to"
        return Finding(_PROBE, Level.FAIL, text, "make it, and let this user write to it", f"mkdir -p {folder}")
    mount = mount_of(case.machine, folder.resolve())
    kind = mount.kind if mount else "unknown"
    free = case.machine.free_bytes(folder)
    facts = {"path": str(path), "file_system": kind, "free_bytes": free, "l1_bytes": case.l1_bytes}
    left = path.stat().st_size if path.is_file() else 0  # of a server that was killed; it is given back first
    if free is not None and free + left < case.l1_bytes:
        text = f"{folder} has {size_text(free)} free, less than the {size_text(case.l1_bytes)} of L1: it will not start"
        return Finding(_PROBE, Level.FAIL, text, "make room, use another disk, or lower --l1-size-gb", "", facts)
    if kind in MEMORY:
        text = f"{folder} is on {kind}, which is memory"
        return Finding(_PROBE, Level.WARN, text, "leave it out: L1 in memory serves engines faster", "", facts)
    if kind in NETWORK:
        text = f"{folder} is on {kind}: a stall there stalls requests, and a fault ends the server"
        return Finding(_PROBE, Level.WARN, text, "use a disk of this machine", "", facts)
    if kind in _COPIES_ON_WRITE:
        text = f"{folder} is on {kind}, which copies what is overwritten: a full disk may end the server"
        return Finding(_PROBE, Level.WARN, text, "use ext4 or xfs", "", facts)
    text = f"{folder} ({kind}) has room for L1; engines get their chunks over the engine port"
    return Finding(_PROBE, Level.OK, text, facts=facts)
