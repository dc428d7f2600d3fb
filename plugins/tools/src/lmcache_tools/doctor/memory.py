"""Is there memory for L1, and would the kernel let us have it?"""

from __future__ import annotations

from collections.abc import Iterator

from lmcache_core.app.open_arena import memory_limit, overcommit
from lmcache_tools.doctor.check_context import CheckContext
from lmcache_tools.doctor.probe_result import Level, ProbeResult
from lmcache_tools.quantities import size_text

_PROBE = "memory"
_BESIDE_BYTES = 512 * 2**20
"""For the process itself, roughly, and for what is on its way."""


def memory(context: CheckContext) -> Iterator[ProbeResult]:
    l1_bytes = 0 if context.l1_memory else context.l1_bytes
    need, available = l1_bytes + _BESIDE_BYTES, context.machine.meminfo("MemAvailable")
    limit = memory_limit(context.machine.root)
    facts = {"needed_bytes": need, "available_bytes": available, "limit_bytes": limit}
    if reason := overcommit(l1_bytes, context.machine.root) if l1_bytes else None:
        reason, _, remedy = reason.partition("; ")
        level = Level.WARN if context.settings.l1_overcommit else Level.FAIL
        yield ProbeResult(_PROBE, level, reason, remedy, _smaller(limit, context.machine.meminfo("MemTotal")), facts)
    elif limit is not None and limit < need:
        yield ProbeResult(
            _PROBE,
            Level.WARN,
            f"the control group may use {size_text(limit)} (shared memory counts, too), and L1 with the server at work needs "
            f"{size_text(need)} when it is full",
            "raise the container's memory limit, or lower --l1-size-gb",
            _smaller(limit),
            facts,
        )
    elif available is not None and available < need:
        yield ProbeResult(
            _PROBE,
            Level.WARN,
            f"{size_text(available)} of memory are available, and L1 with the server needs {size_text(need)} when it is "
            "full",
            "free memory, or lower --l1-size-gb",
            _smaller(available),
            facts,
        )
    elif available is None:
        yield ProbeResult(_PROBE, Level.WARN, "/proc/meminfo does not say how much memory is available", facts=facts)
    else:
        within = f", and the control group may use {size_text(limit)}" if limit is not None else ""
        yield ProbeResult(
            _PROBE, Level.OK, f"{size_text(available)} are available{within}; {size_text(need)} are needed", facts=facts
        )


def _smaller(*rooms: int | None) -> str:
    """The flag with which L1 and what is beside it fit into the smallest of these."""
    room = min(room for room in rooms if room is not None)
    return f"--l1-size-gb {max(0.1, (room - _BESIDE_BYTES) / 2**30):.1f}"
