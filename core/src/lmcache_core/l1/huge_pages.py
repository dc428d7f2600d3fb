"""Whether this machine lets L1 have huge pages, and what to do where it does not."""

from __future__ import annotations

from pathlib import Path

THP_ROOT = Path("/sys/kernel/mm/transparent_hugepage")
MOUNTS = Path("/proc/self/mountinfo")
HUGE_BYTES = 2 << 20
"""Size and alignment of what is allocated at a time; also where the machine's huge pages are larger."""


def anonymous_obstacle(thp_root: Path = THP_ROOT) -> str | None:
    """Why private memory gets no transparent huge pages, with the remedy; None when it does."""
    mode = _chosen(thp_root / "enabled")
    if mode in ("always", "madvise"):
        return None
    return (
        f"{thp_root}/enabled is '{mode}'; write madvise into it, or reserve {HUGE_BYTES >> 20} MiB pages "
        "for all of L1 (sysctl vm.nr_hugepages)"
    )


def shared_obstacle(shm_root: Path, thp_root: Path = THP_ROOT, mounts: Path = MOUNTS) -> str | None:
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
    """Of the file system that is mounted at `root`; the last one mounted there is seen."""
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
