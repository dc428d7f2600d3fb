"""Which of an adapter's settings are folders, which are devices, and which bounds what it keeps, as its offer declares."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from lmcache_core import StorageFacts
from lmcache_core.app.adapter_specs import AdapterSpec

_UNITS: Final = {"bytes": 1, "kb": 2**10, "mb": 2**20, "gb": 2**30, "tb": 2**40}
_NOTHING: Final = StorageFacts()


class Capacity(NamedTuple):
    """The setting that bounds what an adapter keeps, and its value; None where it is not set."""

    setting: str
    bytes: int | None


def facts_of(spec: AdapterSpec) -> StorageFacts:
    """What its offer declares of where its objects are."""
    return spec.offer.storage or _NOTHING


def adapter_capacity(spec: AdapterSpec) -> Capacity | None:
    """None without such a setting; of several, the one that is set."""
    found = []
    for name in facts_of(spec).capacity:
        value: Any = getattr(spec.settings, name, None)
        unit = _UNITS.get(name.rpartition("_")[2], 1)
        found.append(Capacity(name, int(value * unit) if isinstance(value, int | float) and value > 0 else None))
    return next((each for each in found if each.bytes is not None), found[0] if found else None)


def adapter_folders(spec: AdapterSpec) -> list[Path]:
    return list(_paths(spec, facts_of(spec).folders))


def adapter_devices(spec: AdapterSpec) -> list[Path]:
    """Block devices, memory devices, and files in place of one."""
    return list(_paths(spec, facts_of(spec).devices))


def _paths(spec: AdapterSpec, names: Iterable[str]) -> Iterable[Path]:
    for name in names:
        value: Any = getattr(spec.settings, name, None)
        for each in value if isinstance(value, list | tuple) else [value]:
            if isinstance(each, str | Path) and str(each):
                yield Path(each)
