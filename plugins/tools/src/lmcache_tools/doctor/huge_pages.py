"""Would L1 get the huge pages that it is asked to have?"""

from __future__ import annotations

from collections.abc import Iterator

from lmcache_core.l1.pages import HUGE_BYTES, anonymous_huge_pages_refusal, shared_huge_pages_refusal
from lmcache_tools.doctor.check_context import CheckContext
from lmcache_tools.doctor.probe_result import Level, ProbeResult

_PROBE = "huge pages"


def huge_pages(context: CheckContext) -> Iterator[ProbeResult]:
    if not context.settings.l1_use_hugepages:
        yield ProbeResult(_PROBE, Level.OK, "not asked for; --l1-use-hugepages makes large copies a little faster")
        return
    root = context.machine.root
    thp = root / "sys/kernel/mm/transparent_hugepage"
    reserved = context.machine.meminfo("HugePages_Free") or 0
    if not context.settings.l1_shared_memory and reserved * HUGE_BYTES >= context.l1_bytes:
        yield ProbeResult(
            _PROBE, Level.OK, f"{reserved} reserved ones are free, enough for L1", facts={"reserved": reserved}
        )
        return
    if context.settings.l1_shared_memory:
        refusal = shared_huge_pages_refusal(root / "dev/shm", thp, root / "proc/self/mountinfo")
    else:
        refusal = anonymous_huge_pages_refusal(thp)
    if refusal is None:
        yield ProbeResult(_PROBE, Level.OK, "L1 gets transparent ones")
    else:
        problem, _, remedy = refusal.partition("; ")
        yield ProbeResult(_PROBE, Level.WARN, f"L1 gets none: {problem}", remedy)
