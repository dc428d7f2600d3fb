"""Is L1's memory fit to be registered with RDMA devices?"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lmcache_core import ConfigError, MemoryRegion

BLOCK_BYTES: Final = 512  # what st_blocks counts, whatever the file system
DEVICES: Final = Path("/sys/class/infiniband")


def check_for_rdma(adapter: str, regions: Sequence[MemoryRegion], devices: Path = DEVICES) -> None:
    """Raises ConfigError where RDMA could not move bytes to and from L1.

    Devices read and write memory that was registered when the adapter was opened, so it must be one stretch, and there."""
    if reason := _fault(regions):
        raise ConfigError(
            f"{adapter}: protocol 'rdma' needs L1's memory as one stretch that is allocated when the server starts, and "
            f"{reason}; start the server with --no-l1-use-lazy, or use protocol 'tcp'"
        )
    if not (devices.is_dir() and any(devices.iterdir())):
        raise ConfigError(
            f"{adapter}: protocol 'rdma' needs an RDMA device, and this machine shows none in {devices}; Mooncake would use "
            "TCP instead without a word; use protocol 'tcp' if that is meant"
        )


def _fault(regions: Sequence[MemoryRegion]) -> str | None:
    if len(regions) != 1:
        return f"it has {len(regions)} regions"
    (region,) = regions
    if region.address == 0 or region.length == 0:
        return f"its address is {region.address:#x} and its length {region.length}"
    if region.is_file:
        return "it lies in a file on a disk"
    if region.descriptor is not None:
        there = os.fstat(region.descriptor).st_blocks * BLOCK_BYTES
        if there < region.length:
            return f"only {there} of its {region.length} bytes are allocated"
    return None
