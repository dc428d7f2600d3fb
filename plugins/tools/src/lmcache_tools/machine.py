"""The machine as probes see it, so that tests can show them another one."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path

from lmcache_core.app import machine


def _processors() -> int:
    return len(os.sched_getaffinity(0))


class Machine(machine.Machine, frozen=True):
    """What a server looks at, and more."""

    statvfs: Callable[[Path], os.statvfs_result] = os.statvfs
    processors: Callable[[], int] = _processors
    limit: Callable[[int], tuple[int, int]] = resource.getrlimit

    def free_bytes(self, path: Path) -> int | None:
        """What a file system has left for us; None when it does not say."""
        try:
            room = self.statvfs(path)
        except OSError:
            return None
        return room.f_bavail * room.f_frsize
