"""The machine as probes see it, so that tests can show them another one."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path

import msgspec


def _processors() -> int:
    return len(os.sched_getaffinity(0))


class Machine(msgspec.Struct, frozen=True):
    """`root` is where its /proc, /sys and /dev are."""

    root: Path = Path("/")
    statvfs: Callable[[Path], os.statvfs_result] = os.statvfs
    processors: Callable[[], int] = _processors
    limit: Callable[[int], tuple[int, int]] = resource.getrlimit

    def text(self, path: str) -> str:
        """Of a file below the root; empty when it cannot be read."""
        try:
            return (self.root / path).read_text(errors="replace").strip()
        except OSError:
            return ""

    def free_bytes(self, path: Path) -> int | None:
        """What a file system has left for us; None when it does not say."""
        try:
            room = self.statvfs(path)
        except OSError:
            return None
        return room.f_bavail * room.f_frsize

    def meminfo(self, name: str) -> int | None:
        """A line of /proc/meminfo: bytes, or pages for those that count pages."""
        for line in self.text("proc/meminfo").splitlines():
            key, _, rest = line.partition(":")
            if key == name:
                words = rest.split()
                return int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
        return None
