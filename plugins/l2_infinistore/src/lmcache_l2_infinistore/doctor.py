"""Is RDMA there, and the package?"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from lmcache_core import CheckResult
from lmcache_l2_infinistore.config import InfinistoreSettings

DEVICES: Final = Path("/sys/class/infiniband")
INSTALL: Final = "pip install infinistore"
REMEDY: Final = 'name a device that is there in dev_name, or take "connection_type": "tcp"'


def check(settings: InfinistoreSettings) -> Iterator[CheckResult]:
    if find_spec("infinistore") is None:
        yield CheckResult("fail", "the package infinistore is not installed", INSTALL)
    said = rdma_text()
    if settings.connection_type == "tcp":
        yield CheckResult("ok", f"{said}; connection_type is tcp")
    elif fault := rdma_fault(settings):
        yield CheckResult("fail", fault, REMEDY)
    else:
        yield CheckResult("ok", said)


def rdma_fault(settings: InfinistoreSettings) -> str | None:
    """Why RDMA cannot be used; None: nothing is known to be in its way."""
    return (
        None if settings.dev_name in rdma_devices() else f"no RDMA device is called {settings.dev_name}: {rdma_text()}"
    )


def rdma_text() -> str:
    found = rdma_devices()
    return f"RDMA is there ({', '.join(found)})" if found else f"this machine has no RDMA device ({DEVICES})"


def rdma_devices() -> list[str]:
    try:
        return sorted(path.name for path in DEVICES.iterdir())
    except OSError:
        return []
