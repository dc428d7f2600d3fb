"""Which file system a path is on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lmcache_tools.machine import Machine

NETWORK: Final = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "gpfs", "beegfs"),
        *("ocfs2", "gfs2", "fuse.sshfs", "fuse.s3fs", "fuse.juicefs"),
    )
)
MEMORY: Final = frozenset(("tmpfs", "ramfs"))


@dataclass(frozen=True, slots=True)
class Mount:
    """`kind` is what the kernel calls the file system, such as ext4."""

    point: str
    kind: str
    options: tuple[str, ...]


def mount_of(machine: Machine, path: Path) -> Mount | None:
    """The one with the longest path that leads to `path`; of several at one place, the last."""
    found: Mount | None = None
    for line in machine.text("proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 6 or not kind:
            continue
        point = fields[4].replace("\\040", " ")
        if path.is_relative_to(point) and (found is None or len(point) >= len(found.point)):
            found = Mount(point, kind[0], tuple(fields[5].split(",")))
    return found


def file_system_remark(path: Path, kind: str) -> tuple[str, str] | None:
    """What is worth a warning where a backend is on a file system of this kind, and what to do about it."""
    if kind in MEMORY:
        text = f"{path} is on {kind}: it is memory, and empty after a restart of the machine"
        return text, "use a disk, or give the memory to L1 (--l1-size-gb)"
    if kind in NETWORK:
        text = f"{path} is on {kind}, so its speed is that of the network, and a stall there stalls loads"
        return text, "set --l2-timeout-seconds to what you can wait; see the speeds below"
    return None
