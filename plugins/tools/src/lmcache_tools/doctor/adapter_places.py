"""Which of an adapter's settings are folders, which are devices, and which bounds what it keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

from lmcache_core.app.adapter_specs import AdapterSpec

_FOLDER_NAMES: Final = ("base_path", "path", "dir", "directory", "folder")
_DEVICE_NAMES: Final = ("device_path", "device_paths", "device")


_UNITS: Final = {"bytes": 1, "kb": 2**10, "mb": 2**20, "gb": 2**30, "gib": 2**30, "tb": 2**40}


class Capacity(NamedTuple):
    """The setting that bounds what an adapter keeps, and its value; None where it is not set."""

    setting: str
    bytes: int | None


def adapter_capacity(spec: AdapterSpec) -> Capacity | None:
    """By the setting's name, which has "capacity" or "max" and "size" in it and ends with a unit.  None without such one; of
    several, the one that is set."""
    found = []
    for name, value in _settings(spec):
        words = name.lower().split("_")
        if words[-1] in _UNITS and ("capacity" in words or {"max", "size"} <= set(words)):
            is_set = isinstance(value, int | float) and value > 0
            found.append(Capacity(name, int(value * _UNITS[words[-1]]) if is_set else None))
    return next((each for each in found if each.bytes is not None), found[0] if found else None)


def adapter_folders(spec: AdapterSpec) -> list[Path]:
    """What of an adapter's settings is a path, by its type or by its name, and names no device."""
    found = []
    for name, value in _settings(spec):
        if name not in _DEVICE_NAMES and (
            isinstance(value, Path) or (isinstance(value, str) and name in _FOLDER_NAMES and value.startswith("/"))
        ):
            found.append(Path(value))
    return found


def adapter_devices(spec: AdapterSpec) -> list[Path]:
    """What of an adapter's settings names block devices, memory devices, or files that stand for one."""
    found: list[Path] = []
    for name, value in _settings(spec):
        if name in _DEVICE_NAMES:
            values = value if isinstance(value, list | tuple) else [value]
            found += [Path(each) for each in values if isinstance(each, str | Path)]
    return found


def _settings(spec: AdapterSpec) -> list[tuple[str, Any]]:
    if spec.settings is None:
        return []
    return [(name, getattr(spec.settings, name)) for name in type(spec.settings).model_fields]
