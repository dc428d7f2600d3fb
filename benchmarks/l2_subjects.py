"""The adapters of the L2 benchmark, as settings on a directory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.l2_cell import MIB

BUFFERED, DIRECT, MEMORY = "buffered", "direct", "memory"
_META_BYTES: Final = 16 * MIB
_SPARE: Final = 4
"""Slots beyond those that are used at a time."""

Settings = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Subject:
    """`settings` gets a directory of its own, the mode, the bytes of an object, and how many are stored at a time."""

    name: str
    modes: tuple[str, ...]
    settings: Callable[[Path, str, int, int], Settings]
    aim: float
    """Share of fio, or of a copy in memory, that it should reach."""
    file_per_object: bool = False


def _fs(folder: Path, mode: str, size: int, count: int) -> Settings:
    return {"type": "fs", "base_path": str(folder / "fs"), "use_odirect": mode == DIRECT}


def _fs_native(folder: Path, mode: str, size: int, count: int) -> Settings:
    return {"type": "fs_native", "base_path": str(folder / "fs_native"), "use_odirect": mode == DIRECT}


def _raw_block(folder: Path, mode: str, size: int, count: int) -> Settings:
    """On a file of its own, whose blocks are reserved beforehand."""
    return {
        "type": "raw_block",
        "device_path": _sized(folder / "raw_block.img", (count + _SPARE) * size + _META_BYTES),
        "slot_bytes": size,
        "meta_total_bytes": _META_BYTES,
        "use_odirect": mode == DIRECT,
        "io_engine": "auto",
    }


def _dax(folder: Path, mode: str, size: int, count: int) -> Settings:
    """On a file in memory: a machine without persistent memory has nothing better."""
    length = (count + _SPARE) * size + _META_BYTES
    path = _sized(folder / "dax.img", length)
    return {"type": "dax", "device_path": path, "max_dax_size_gb": length / 2**30, "slot_bytes": size}


def _sized(path: Path, length: int) -> str:
    """A new file of zeros, as an unused device."""
    path.unlink(missing_ok=True)
    with path.open("wb") as file:
        file.truncate(length)
    return str(path)


SUBJECTS: Final = (
    Subject("fs", (BUFFERED, DIRECT), _fs, 0.70, file_per_object=True),
    Subject("fs_native", (BUFFERED, DIRECT), _fs_native, 0.95, file_per_object=True),
    Subject("raw_block", (BUFFERED, DIRECT), _raw_block, 0.95),
    Subject("dax", (MEMORY,), _dax, 0.90),
)
