"""Which pages L1 can have on this machine: huge ones, and on which memory nodes.

Without a NUMA policy a page lies on the node of the thread that allocates it, mostly the one that allocates ahead: all of L1
lies on one node until that is full.  Interleaving gives engines on every node the same, middling distance.  The gain of
either on a machine with several nodes has not been measured: the calls were run on one node.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from lmcache_client.errors import ResourceError

THP_ROOT = Path("/sys/kernel/mm/transparent_hugepage")
MOUNTS = Path("/proc/self/mountinfo")
HUGE_BYTES = 2 << 20
"""Size and alignment of allocations; also where the machine's huge pages are larger."""
NODES_ROOT = Path("/sys/devices/system/node")
_PREFERRED, _INTERLEAVE, _LOCAL = 1, 3, 4  # linux/mempolicy.h


def anonymous_huge_pages_refusal(thp_root: Path = THP_ROOT) -> str | None:
    """Why private memory gets no transparent huge pages, with the remedy; None when it does."""
    mode = _chosen(thp_root / "enabled")
    if mode in ("always", "madvise"):
        return None
    return (
        f"{thp_root}/enabled is '{mode}'; write madvise into it, or reserve {HUGE_BYTES >> 20} MiB pages "
        "for all of L1 (sysctl vm.nr_hugepages)"
    )


def shared_huge_pages_refusal(shm_root: Path, thp_root: Path = THP_ROOT, mounts: Path = MOUNTS) -> str | None:
    """Why a segment in `shm_root` gets no huge pages, with the remedy; None when it does.

    Engines map the segment by its name in that directory, so pages reserved for hugetlbfs cannot serve them."""
    mode = _chosen(thp_root / "shmem_enabled")
    if mode == "force":
        return None
    if mode in ("deny", "unknown"):
        return f"{thp_root}/shmem_enabled is '{mode}'; write advise into it"
    option = next((word for word in _mount_options(shm_root, mounts) if word.startswith("huge=")), "huge=never")
    if option == "huge=never":
        return f"{shm_root} is mounted without huge pages; mount -o remount,huge=advise {shm_root}"
    return None


def _chosen(path: Path) -> str:
    """The word in brackets."""
    try:
        words = path.read_text().split()
    except OSError:
        return "unknown"
    return next((word[1:-1] for word in words if word.startswith("[")), "unknown")


def _mount_options(root: Path, mounts: Path) -> list[str]:
    """Of the file system that is mounted at `root`; the last one mounted there counts."""
    options: list[str] = []
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return options
    for line in lines:
        before, _, after = line.partition(" - ")
        if before.split()[4:5] == [str(root)]:
            options = after.split()[-1].split(",")
    return options


class Placement(NamedTuple):
    """A memory policy as the kernel takes it."""

    mode: int
    nodes: tuple[int, ...]


def memory_nodes(root: Path = NODES_ROOT) -> tuple[int, ...]:
    """The nodes that have memory; one, where the machine says nothing about it."""
    try:
        text = (root / "has_memory").read_text().strip()
    except OSError:
        return (0,)
    nodes: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        nodes += range(int(first), int(last or first) + 1)
    return tuple(nodes) or (0,)


def choose_placement(mode: str, nodes: Sequence[int]) -> Placement | None:
    """The policy for a value of `--l1-numa` on a machine with these nodes; None where there is no choice.  Pages that do not
    fit into a full node go to the others.  Raises ResourceError for a node that does not exist."""
    if mode.isdigit() and int(mode) not in nodes:
        there = ", ".join(map(str, nodes))
        raise ResourceError(f"l1_numa: memory node {int(mode)} is not there; this machine has {there}")
    if mode == "off" or len(nodes) == 1:
        return None
    if mode == "interleave":
        return Placement(_INTERLEAVE, tuple(nodes))
    return Placement(_LOCAL, ()) if mode == "local" else Placement(_PREFERRED, (int(mode),))
