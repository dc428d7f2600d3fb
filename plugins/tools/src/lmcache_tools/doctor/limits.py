"""What this process may open and lock."""

from __future__ import annotations

import resource
from collections.abc import Iterator

from lmcache_tools.doctor.check_context import CheckContext
from lmcache_tools.doctor.probe_result import Level, ProbeResult
from lmcache_tools.quantities import size_text

_FILES_MIN = 4096
_FILES_FEW = 256


def limits(context: CheckContext) -> Iterator[ProbeResult]:
    yield _files(context.machine.limit(resource.RLIMIT_NOFILE)[0])
    yield _locked(context.machine.limit(resource.RLIMIT_MEMLOCK)[0], context.l1_bytes)


def _files(soft: int) -> ProbeResult:
    facts = {"soft": soft}
    if soft == resource.RLIM_INFINITY or soft >= _FILES_MIN:
        return ProbeResult("open files", Level.OK, f"{_number(soft)} may be open at once", facts=facts)
    return ProbeResult(
        "open files",
        Level.FAIL if soft < _FILES_FEW else Level.WARN,
        f"only {soft} may be open at once; connections of engines, files and sockets of adapters count",
        f"allow {_FILES_MIN} or more (systemd: LimitNOFILE=65536; docker: --ulimit nofile=65536)",
        "ulimit -n 65536",
        facts,
    )


def _locked(soft: int, l1_bytes: int) -> ProbeResult:
    facts = {"soft": soft, "l1_bytes": l1_bytes}
    if soft == resource.RLIM_INFINITY or soft >= l1_bytes:
        return ProbeResult("locked memory", Level.OK, "all of L1 may be registered with a device", facts=facts)
    return ProbeResult(
        "locked memory",
        Level.OK,
        f"{size_text(soft)} may be locked, less than L1; that matters only to adapters that register it with a device "
        "(RDMA, GPUDirect)",
        facts=facts,
    )


def _number(soft: int) -> str:
    return "any number" if soft == resource.RLIM_INFINITY else str(soft)
