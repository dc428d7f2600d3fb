"""The environment that servers and engines are started in: nothing reports home, nothing is downloaded, and the
caller's own settings of these programs do not leak in."""

from __future__ import annotations

import os
from importlib.util import find_spec

FOREIGN_PREFIXES = ("LMCACHE_", "VLLM_", "OMP_", "GOMP_", "KMP_")

TELEMETRY_OFF = {
    "LMCACHE_TRACK_USAGE": "false",
    "DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


NO_FIXED_PORT = {"LMCACHE_PROMETHEUS_PORT": "0"} if find_spec("lmcache_observability") else {}
"""Several servers run beside each other here, and one port is not enough for them.  A flag goes before it.  Where
lmcache-observability is not installed, as for the demo, a server refuses the variable."""


def quiet_environment() -> dict[str, str]:
    """A new dictionary: this process's environment without foreign settings, and with every telemetry switch off."""
    return core_environment() | NO_FIXED_PORT


def core_environment() -> dict[str, str]:
    """The same for another installation, which may have no plugins: without their variables."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN_PREFIXES)}
    return inherited | TELEMETRY_OFF | {"PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1"}
