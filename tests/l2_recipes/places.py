"""Where each local adapter keeps its objects, made afresh in a folder of the test's."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

DEVICE_BYTES: Final = 64 << 20
SLOT_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class Place:
    """An adapter's settings, and what on the disk is its own: a directory, or a file that replaces a device."""

    settings: Mapping[str, Any]
    path: Path

    @property
    def flags(self) -> tuple[str, str]:
        return ("--l2-adapter", json.dumps(self.settings))


def _directory(name: str, folder: Path) -> Place:
    path = folder / "l2"
    return Place({"type": name, "base_path": str(path)}, path)


def _device(name: str, folder: Path, **more: object) -> Place:
    path = folder / "device"
    if not path.exists():
        with path.open("xb") as file:
            os.posix_fallocate(file.fileno(), 0, DEVICE_BYTES)
    return Place({"type": name, "device_path": str(path), "slot_bytes": SLOT_BYTES, **more}, path)


MakePlace = Callable[[Path], Place]

DIRECTORIES: Final[Mapping[str, MakePlace]] = {
    "fs": lambda folder: _directory("fs", folder),
    "fs_native": lambda folder: _directory("fs_native", folder),
}
DEVICES: Final[Mapping[str, MakePlace]] = {
    "raw_block": lambda folder: _device("raw_block", folder, meta_total_bytes=4 << 20),
    "dax": lambda folder: _device("dax", folder, max_dax_size_gb=DEVICE_BYTES / 2**30),
    "dax_persistent": lambda folder: _device("dax", folder, max_dax_size_gb=DEVICE_BYTES / 2**30, persist_enabled=True),
}
PLACES: Final[Mapping[str, MakePlace]] = {**DIRECTORIES, **DEVICES}
"""Made again from the same folder, a place is the same place."""

DURABLE: Final = frozenset(PLACES) - {"dax"}
"""What was stored there is there after a SIGKILL."""
