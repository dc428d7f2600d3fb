"""The adapters whose medium can break, and how each is put on one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.media_faults.site import SLOT_BYTES

DEVICE_BYTES: Final = 48 * 2**20
Settings = Mapping[str, Any]


def _files(**settings: Any) -> Callable[[Path], Settings]:
    return lambda root: {"base_path": str(root / "l2"), **settings}


def _device(**settings: Any) -> Callable[[Path], Settings]:
    def on(root: Path) -> Settings:
        device = root / "device"
        with device.open("wb") as file:
            file.write(bytes(DEVICE_BYTES))
        slot = -(-SLOT_BYTES // 4096) * 4096
        return {"device_path": str(device), "slot_bytes": slot, "meta_total_bytes": 2**20, **settings}

    return on


FS, FS_DIRECT = "fs", "fs, O_DIRECT"
FS_NATIVE, FS_NATIVE_THREADS = "fs_native, O_DIRECT", "fs_native, threads"
RAW_BLOCK, RAW_BLOCK_THREADS = "raw_block", "raw_block, threads"

MADE: Final = {
    FS: _files(type="fs"),
    FS_DIRECT: _files(type="fs", use_odirect=True),
    FS_NATIVE: _files(type="fs_native", io_engine="auto", use_odirect=True),
    FS_NATIVE_THREADS: _files(type="fs_native", io_engine="threads"),
    RAW_BLOCK: _device(type="raw_block", io_engine="auto"),
    RAW_BLOCK_THREADS: _device(type="raw_block", io_engine="threads"),
}
"""Settings of `--l2-adapter`, made for the root of a medium."""


def mapped_device(root: Path) -> Settings:
    """`dax` on a file of the medium, which it maps."""
    device = root / "device"
    device.write_bytes(bytes(DEVICE_BYTES))
    slot = -(-SLOT_BYTES // 4096) * 4096
    size_gb = DEVICE_BYTES / 2**30
    return {
        "type": "dax",
        "device_path": str(device),
        "max_dax_size_gb": size_gb,
        "slot_bytes": slot,
        "persist_enabled": True,
    }


_OFTEN: Final = (FS, FS_NATIVE, RAW_BLOCK)
EVERY: Final = [name if name in _OFTEN else pytest.param(name, marks=pytest.mark.slow) for name in MADE]
"""For `parametrize`: one of each kind always, its other engines and modes in the long run."""
ON_FILES: Final = EVERY[:4]
