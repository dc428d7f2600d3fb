"""Every thread of this process, to find one that is busy or stuck."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

from lmcache_http.admin_api.server import ThreadRow

_TASKS: Final = Path("/proc/self/task")
_FRAMES_MAX: Final = 30
_STATE, _USER, _SYSTEM = 0, 11, 12
"""Fields of `/proc/<pid>/task/<tid>/stat`, counted behind the name."""


class _Task(NamedTuple):
    """What the kernel knows of a thread."""

    name: str
    state: str
    cpu_seconds: float


def thread_list(supervised: Mapping[str, Any], tasks: Path = _TASKS) -> list[ThreadRow]:
    """The busiest first.  `supervised`: what the supervisor says, by name.  Takes about a millisecond, of which the
    interpreter is held for a fraction."""
    known = _tasks(tasks)
    frames = sys._current_frames()
    rows = []
    for thread in threading.enumerate():
        task = known.pop(thread.native_id, None) if thread.native_id is not None else None
        rows.append(
            ThreadRow(
                name=thread.name,
                native_id=thread.native_id,
                daemon=thread.daemon,
                python=True,
                state=task.state if task else None,
                cpu_seconds=task.cpu_seconds if task else None,
                supervised=supervised.get(thread.name),
                stack=_stack(frames.get(thread.ident or 0)),
            )
        )
    for native_id, task in known.items():
        rows.append(
            ThreadRow(
                name=task.name,
                native_id=native_id,
                daemon=True,
                python=False,
                state=task.state,
                cpu_seconds=task.cpu_seconds,
                supervised=None,
                stack=[],
            )
        )
    return sorted(rows, key=lambda row: -(row.cpu_seconds or 0.0))


def _tasks(folder: Path) -> dict[int, _Task]:
    ticks = os.sysconf("SC_CLK_TCK")
    found = {}
    try:
        numbers = sorted(int(each.name) for each in folder.iterdir())
    except OSError:  # no such thing on this kernel
        return {}
    for number in numbers:
        try:
            text = (folder / str(number) / "stat").read_text(errors="replace")
        except OSError:  # it has ended since
            continue
        name, _, rest = text.partition("(")[2].rpartition(")")
        fields = rest.split()
        used = (int(fields[_USER]) + int(fields[_SYSTEM])) / ticks
        found[number] = _Task(name, fields[_STATE], used)
    return found


def _stack(frame: FrameType | None) -> list[str]:
    """Module, line and function of each call, the innermost last.  Values of variables are left out: they may be secrets."""
    calls: list[str] = []
    while frame is not None and len(calls) < _FRAMES_MAX:
        code = frame.f_code
        calls.append(f"{frame.f_globals.get('__name__', code.co_filename)}:{frame.f_lineno} {code.co_qualname}")
        frame = frame.f_back
    return calls[::-1]
