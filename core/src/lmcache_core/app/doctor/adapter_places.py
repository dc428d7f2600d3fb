"""Which of an adapter's settings are folders, and which are devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from lmcache_core.app.adapter_specs import AdapterSpec

_FOLDER_NAMES: Final = ("base_path", "path", "dir", "directory", "folder")
_DEVICE_NAMES: Final = ("device_path", "device_paths", "device")


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
