"""Which process on which machine, so that one that is gone is recognized without waiting."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple, Self

_STARTED_FIELD = 19
"""Start time in /proc/<pid>/stat, counted from the field behind the command's name."""


class ProcessMark(NamedTuple):
    """One process.  `machine` is one boot of one kernel and one namespace of process ids on it, and "" where that cannot
    be known; `started` is in ticks since that boot."""

    machine: str
    pid: int
    started: int

    @classmethod
    def current(cls) -> Self:
        pid = os.getpid()
        return cls(_machine(), pid, _started(pid) or 0)

    def is_gone(self) -> bool:
        """True: it has certainly ended.  False: it runs, or runs where one cannot look from here."""
        if not self.machine or not self.started or self.machine != _machine():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            pass  # a process of another user: it exists, its start time says whether it is this one
        started = _started(self.pid)
        return started is not None and started != self.started


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except (OSError, UnicodeDecodeError):
        return ""


def _started(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        return int(stat[stat.rindex(b")") + 2 :].split()[_STARTED_FIELD])
    except (OSError, ValueError, IndexError):
        return None
