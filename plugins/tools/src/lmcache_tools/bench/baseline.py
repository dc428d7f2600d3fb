"""Which medium an adapter is compared with, read from its settings."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lmcache_client.errors import ConfigError
from lmcache_core.app.adapter_specs import AdapterSpec
from lmcache_tools.doctor.adapter_places import adapter_devices, adapter_folders, facts_of

AUTO, NONE, MEMORY = "auto", "none", "memory"
_KINDS: Final = {"posix": "threads", "threads": "threads", "io_uring": "io_uring"}


@dataclass(frozen=True, slots=True)
class Baseline:
    """A medium to measure: memory where `folder` is None.  `reason` says why there is none to measure."""

    folder: Path | None = None
    is_direct: bool = False
    is_fresh: bool = False
    """Are blocks allocated anew with each pass, as for new files?"""
    engine: str = "auto"
    reason: str | None = None


def baseline(spec: AdapterSpec, asked: str) -> Baseline:
    """`asked` is `auto`, `none`, `memory`, or a directory on a medium like the adapter's.  Nothing is written to a device that
    the adapter owns.  Raises ConfigError for what is not a directory."""
    given, facts = spec.settings, facts_of(spec)
    is_direct = bool(facts.direct_io and getattr(given, facts.direct_io, False))
    engine = _KINDS.get(str(getattr(given, facts.io_engine, "")), "auto") if facts.io_engine else "auto"
    files = next(iter(adapter_folders(spec)), None)
    device = next(iter(adapter_devices(spec)), None)
    if asked == NONE:
        return Baseline(reason="not asked for")
    if asked == MEMORY or (asked == AUTO and facts.in_memory):
        return Baseline()
    if asked != AUTO:
        if not Path(asked).is_dir():
            raise ConfigError(
                f"--medium '{asked}' is not a directory; name one on a medium like the adapter's, or auto, memory, none"
            )
        return Baseline(Path(asked).absolute(), is_direct, device is None, engine)
    if files is not None:
        return Baseline(files.absolute(), is_direct, True, engine)
    if device is not None and _is_plain(device):
        return Baseline(device.absolute().parent, is_direct, False, engine)
    if device is not None:
        return Baseline(
            reason=f"'{device}' is the adapter's own; name a directory on a device of the same kind with --medium"
        )
    return Baseline(reason="its settings name no path; --medium memory, or a directory, compares it with that")


def _is_plain(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False
