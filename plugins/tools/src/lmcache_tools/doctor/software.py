"""Python, and the compiled kernels."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Iterator

from lmcache_client.errors import ConfigError
from lmcache_core.kernels.choice import choose_kernels
from lmcache_tools.doctor.check_context import CheckContext
from lmcache_tools.doctor.probe_result import Level, ProbeResult

_RESOLUTION_SECONDS = 1e-6


def software(context: CheckContext) -> Iterator[ProbeResult]:
    version, system = platform.python_version(), f"{platform.system()} {platform.machine()}"
    facts = {
        "python": version,
        "system": platform.system(),
        "machine": platform.machine(),
        "release": platform.release(),
    }
    if sys.platform != "linux":
        yield ProbeResult(
            "python", Level.FAIL, f"{system} is not Linux, which the server needs", "run it on Linux", "", facts
        )
    else:
        yield ProbeResult("python", Level.OK, f"{platform.python_implementation()} {version} on {system}", facts=facts)
    yield _kernels(context)
    yield _clock()


def _kernels(context: CheckContext) -> ProbeResult:
    try:
        kernels = choose_kernels(context.settings.native)
    except ConfigError as error:
        return ProbeResult(
            "kernels", Level.FAIL, str(error), "pip install lmcache-native", "pip install lmcache-native"
        )
    if kernels.native:
        return ProbeResult("kernels", Level.OK, "compiled (lmcache-native)", facts={"native": True})
    if context.settings.native == "off":
        return ProbeResult("kernels", Level.OK, "pure Python, as --native off asks for", facts={"native": False})
    return ProbeResult(
        "kernels",
        Level.WARN,
        "pure Python: lookups cost several times the processor time, and bookkeeping twice the memory",
        "install the compiled ones in the same version",
        "pip install lmcache-native",
        {"native": False},
    )


def _clock() -> ProbeResult:
    info = time.get_clock_info("monotonic")
    facts = {"resolution_seconds": info.resolution, "implementation": info.implementation}
    if info.resolution <= _RESOLUTION_SECONDS:
        return ProbeResult("clock", Level.OK, f"monotonic, resolution {info.resolution * 1e9:.0f} ns", facts=facts)
    return ProbeResult(
        "clock",
        Level.WARN,
        f"the monotonic clock moves in steps of {info.resolution * 1e6:.0f} us, so that times in metrics are coarse",
        "use a machine with a high-resolution clock source",
        facts=facts,
    )
