"""Is there memory for L1, and would the kernel let us have it?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from lmcache_core.app.console.quantities import size_text
from lmcache_core.app.doctor.case import Case
from lmcache_core.app.doctor.finding import Finding, Level
from lmcache_core.app.doctor.machine import Machine

_PROBE = "memory"
_BESIDE_BYTES = 512 * 2**20
"""For the process itself, roughly, and for what is on its way."""


def memory(case: Case) -> Iterator[Finding]:
    l1_bytes = 0 if case.settings.gds_l1_path else case.l1_bytes
    need, available = l1_bytes + _BESIDE_BYTES, case.machine.meminfo("MemAvailable")
    limit = memory_limit(case.machine)
    facts = {"needed_bytes": need, "available_bytes": available, "limit_bytes": limit}
    if limit is not None and limit < need:
        yield Finding(
            _PROBE,
            Level.FAIL,
            f"the control group may use {size_text(limit)}, and L1 with the server needs {size_text(need)}: the kernel "
            "would end the server when L1 fills (shared memory counts, too)",
            "raise the container's memory limit, or lower --l1-size-gb",
            f"--l1-size-gb {max(0.1, (limit - _BESIDE_BYTES) / 2**30):.1f}",
            facts,
        )
    elif available is not None and available < need:
        yield Finding(
            _PROBE,
            Level.WARN,
            f"{size_text(available)} of memory are available, and L1 with the server needs {size_text(need)} when it is "
            "full",
            "free memory, or lower --l1-size-gb",
            f"--l1-size-gb {max(0.1, (available - _BESIDE_BYTES) / 2**30):.1f}",
            facts,
        )
    elif available is None:
        yield Finding(_PROBE, Level.WARN, "/proc/meminfo does not say how much memory is available", facts=facts)
    else:
        within = f", and the control group may use {size_text(limit)}" if limit is not None else ""
        yield Finding(
            _PROBE, Level.OK, f"{size_text(available)} are available{within}; {size_text(need)} are needed", facts=facts
        )


def memory_limit(machine: Machine) -> int | None:
    """Of the control group that we are in and of all above it, version 1 or 2; None without one."""
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


_V1 = "sys/fs/cgroup/memory"
_NO_LIMIT = 2**60
"""Version 1 has no word for none, but a very large number."""
