"""Does L1 fit into the shared memory that engines map?"""

from __future__ import annotations

from collections.abc import Iterator

from lmcache_tools.doctor.check_context import CheckContext
from lmcache_tools.doctor.probe_result import Level, ProbeResult
from lmcache_tools.quantities import size_text

_PROBE = "shared memory"


def shared_memory(context: CheckContext) -> Iterator[ProbeResult]:
    if context.l1_memory:
        return
    if not context.settings.l1_shared_memory:
        yield ProbeResult(
            _PROBE,
            Level.WARN,
            "--no-l1-shared-memory: the bytes of every chunk travel through the engine port",
            "leave --no-l1-shared-memory out where engines run on this machine",
            "--l1-shared-memory",
        )
        return
    path = context.machine.root / "dev/shm"
    free = context.machine.free_bytes(path)
    facts = {"l1_bytes": context.l1_bytes, "free_bytes": free}
    if free is None:
        yield ProbeResult(_PROBE, Level.FAIL, "/dev/shm cannot be used", "mount a tmpfs there", facts=facts)
    elif free < context.l1_bytes:
        gigabytes = -(-context.l1_bytes // 2**30) + 1
        yield ProbeResult(
            _PROBE,
            Level.WARN,
            f"L1 of {size_text(context.l1_bytes)} does not fit into /dev/shm, which has {size_text(free)} free: engines "
            "would get their chunks through the engine port, which is slower",
            f"enlarge it (docker: --shm-size {gigabytes}g; Kubernetes: an emptyDir of medium Memory), or lower "
            "--l1-size-gb",
            f"mount -o remount,size={gigabytes}g /dev/shm",
            facts,
        )
    else:
        yield ProbeResult(
            _PROBE,
            Level.OK,
            f"/dev/shm has {size_text(free)} free for an L1 of {size_text(context.l1_bytes)}",
            facts=facts,
        )
