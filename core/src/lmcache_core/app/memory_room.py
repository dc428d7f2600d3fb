"""How much memory this machine, and the control groups that we are in, leave to L1 and the server."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Final

from lmcache_core.app.console.quantities import size_text
from lmcache_core.app.machine import Machine

PROCESS_BYTES: Final = 128 * 2**20
"""What the server needs beside L1, at least: one without adapters and without work has 55 MiB."""
_V1: Final = "sys/fs/cgroup/memory"
_NO_LIMIT: Final = 2**60
"""Version 1 has no word for none, but a very large number."""


def memory_limit(machine: Machine) -> int | None:
    """Of the control group that we are in and of all above it, version 1 or 2, in bytes; None without one."""
    limits = []
    for line in machine.text("proc/self/cgroup").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers and "memory" not in controllers.split(","):
            continue
        base, name = ("sys/fs/cgroup", "memory.max") if not controllers else (_V1, "memory.limit_in_bytes")
        inner = PurePosixPath(path.lstrip("/"))
        for folder in (inner, *inner.parents):
            text = machine.text(f"{base}/{folder}/{name}")
            if text.isdigit() and int(text) < _NO_LIMIT:
                limits.append(int(text))
    return min(limits, default=None)


def overcommit(l1_bytes: int, machine: Machine) -> str | None:
    """Why L1 of this size and the server can never be in memory together, and what to do, in one line; None where they can, or
    where the machine does not say."""
    limit, total = memory_limit(machine), machine.meminfo("MemTotal")
    room = min((room for room in (limit, total) if room is not None), default=None)
    if room is None or l1_bytes + PROCESS_BYTES <= room:
        return None
    owner, remedy = (
        (
            f"the control group may use {size_text(room)} (shared memory counts, too)",
            "raise the container's memory limit",
        )
        if room == limit
        else (f"the machine has {size_text(room)} of memory", "use a larger machine")
    )
    fitting = int((room - PROCESS_BYTES) / 2**30 * 100) / 100
    lower = f"lower l1_size_gb to {fitting:g} or less, " if fitting > 0 else ""
    return (
        f"L1 of {size_text(l1_bytes)} and the server itself ({size_text(PROCESS_BYTES)}) need more than there is: {owner}, and "
        f"the kernel would end the server when L1 fills; {lower}{remedy}, or give --l1-overcommit"
    )
