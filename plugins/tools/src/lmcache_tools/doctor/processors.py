"""Are there processors for the threads that are asked for?"""

from __future__ import annotations

import math
from collections.abc import Iterator

from lmcache_tools.doctor.check_context import CheckContext
from lmcache_tools.doctor.probe_result import Level, ProbeResult
from lmcache_tools.machine import Machine

_PROBE = "processors"


def processors(context: CheckContext) -> Iterator[ProbeResult]:
    settings, count = context.settings, context.machine.processors()
    quota = processor_quota(context.machine)
    usable = count if quota is None else min(count, quota)
    workers = (settings.max_cpu_workers or settings.max_workers) + (settings.max_gpu_workers or settings.max_workers)
    facts = {"processors": count, "quota": quota, "workers": workers}
    within = f", of which the control group may use {quota:g}" if quota is not None and quota < count else ""
    text = f"{count} processors{within}, {workers} request threads"
    if usable < 2:
        yield ProbeResult(
            _PROBE,
            Level.WARN,
            f"{text}: requests, hashing and copies take turns on one",
            "give the server two processors at least",
            facts=facts,
        )
    elif workers > 2 * math.ceil(usable):
        yield ProbeResult(
            _PROBE,
            Level.WARN,
            f"{text}: more threads than processors can serve only wait for each other",
            "lower --max-workers",
            f"--max-workers {max(1, math.floor(usable))}",
            facts,
        )
    else:
        yield ProbeResult(_PROBE, Level.OK, text, facts=facts)


def processor_quota(machine: Machine) -> float | None:
    """How many processors' time the control group may use; None without a limit."""
    quota, _, period = machine.text("sys/fs/cgroup/cpu.max").partition(" ")
    if not quota:
        quota, period = (machine.text(f"sys/fs/cgroup/cpu/cpu.cfs_{name}_us") for name in ("quota", "period"))
    if not (quota.isdigit() and period.isdigit()) or not int(period):
        return None
    return int(quota) / int(period)
