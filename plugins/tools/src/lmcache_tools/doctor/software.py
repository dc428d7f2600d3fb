"""Python, and the compiled kernels."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Iterator

from lmcache_client.errors import ConfigError
from lmcache_core.kernels.choice import choose_kernels
from lmcache_tools.doctor.case import Case
from lmcache_tools.doctor.finding import Finding, Level

_RESOLUTION_SECONDS = 1e-6


def software(case: Case) -> Iterator[Finding]:
    version, system = platform.python_version(), f"{platform.system()} {platform.machine()}"
    facts = {
        "python": version,
        "system": platform.system(),
        "machine": platform.machine(),
        "release": platform.release(),
    }
    if sys.platform != "linux":
        yield Finding(
            "python", Level.FAIL, f"{system} is not Linux, which the server needs", "run it on Linux", "", facts
        )
    else:
        yield Finding("python", Level.OK, f"{platform.python_implementation()} {version} on {system}", facts=facts)
    yield _kernels(case)
    yield _clock()


def _kernels(case: Case) -> Finding:
    try:
        kernels = choose_kernels(case.settings.native)
    except ConfigError as error:
        return Finding("kernels", Level.FAIL, str(error), "pip install lmcache-native", "pip install lmcache-native")
    if kernels.native:
        return Finding("kernels", Level.OK, "compiled (lmcache-native)", facts={"native": True})
    if case.settings.native == "off":
        return Finding("kernels", Level.OK, "pure Python, as --native off asks for", facts={"native": False})
    return Finding(
        "kernels",
        Level.WARN,
        "pure Python: lookups cost several times the processor time, and bookkeeping twice the memory",
        "install the compiled ones in the same version",
        "pip install lmcache-native",
        {"native": False},
    )


def _clock() -> Finding:
    info = time.get_clock_info("monotonic")
    facts = {"resolution_seconds": info.resolution, "implementation": info.implementation}
    if info.resolution <= _RESOLUTION_SECONDS:
        return Finding("clock", Level.OK, f"monotonic, resolution {info.resolution * 1e9:.0f} ns", facts=facts)
    return Finding(
        "clock",
        Level.WARN,
        f"the monotonic clock moves in steps of {info.resolution * 1e6:.0f} us, so that times in metrics are coarse",
        "use a machine with a high-resolution clock source",
        facts=facts,
    )
