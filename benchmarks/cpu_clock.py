"""CPU time of another process, to the nanosecond."""

from __future__ import annotations

import time

_WHOLE_PROCESS = 2  # the kernel's clock ids: the complement of the pid above three bits that say which clock of it


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads, those that have ended included.  Raises OSError when there is no such process."""
    return time.clock_gettime((~pid << 3) | _WHOLE_PROCESS)


class CpuMeter:
    """What a process uses while a `with` block runs; `seconds` is there afterwards."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.seconds = 0.0

    def __enter__(self) -> CpuMeter:
        self._start_time = cpu_seconds(self._pid)
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds = cpu_seconds(self._pid) - self._start_time
