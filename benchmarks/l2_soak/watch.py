"""Looks at both tiers ten times a second while engines work."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from demo.server_process import ServerProcess

PERIOD_SECONDS: Final = 0.1
WALK_EVERY: Final = 10
"""The disk itself is looked at less often than the server's books."""
NOT_OBJECTS: Final = frozenset({".lock"})


class Sample(msgspec.Struct, frozen=True):
    seconds: float
    l1_bytes: int
    l1_capacity_bytes: int
    l2_bytes: int
    l2_capacity_bytes: int
    backlog_bytes: int
    evicted_bytes: int
    """From L2, since the start."""
    healthy: bool
    state_counts_add_up: bool
    disk_bytes: int | None = None
    """Of all files below the adapter's directory, half-written ones included; None where it was not looked at."""
    disk_excess_bytes: int = 0
    """So much more lay there than the capacity and what was evicted while it was looked at."""

    @property
    def within(self) -> bool:
        """Neither tier holds more than it may, by the server's books and by the disk."""
        books = self.l1_bytes <= self.l1_capacity_bytes and self.l2_bytes <= self.l2_capacity_bytes
        return books and self.disk_excess_bytes <= 0


def sample_of(status: Mapping[str, Any], seconds: float) -> Sample:
    """Of a server with one adapter that has a capacity."""
    l1, (l2,) = status["l1"], status["l2"]
    usage = l2["usage"] or {"used_bytes": 0, "capacity_bytes": 0}  # none while it is not known
    return Sample(
        seconds=round(seconds, 3),
        l1_bytes=l1["used_bytes"],
        l1_capacity_bytes=l1["capacity_bytes"],
        l2_bytes=usage["used_bytes"],
        l2_capacity_bytes=usage["capacity_bytes"],
        backlog_bytes=status["store"]["backlog_bytes"],
        evicted_bytes=l2["eviction"]["evicted_bytes"],
        healthy=status["state"] != "unhealthy",
        state_counts_add_up=l1["state_counts_add_up"],
    )


def disk_bytes(folder: Path) -> int:
    """Files that vanish meanwhile count as nothing."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            if name not in NOT_OBJECTS:
                try:
                    total += os.stat(os.path.join(parent, name), follow_symlinks=False).st_size
                except FileNotFoundError:
                    continue
    return total


class Watcher:
    """Takes samples on a thread of its own from `start` to `stop`; then they are the caller's."""

    def __init__(self, server: ServerProcess, folder: Path) -> None:
        self._server = server
        self._folder = folder
        self._start_time = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)
        self.samples: list[Sample] = []
        self.fault: str | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60.0)

    def take(self, *, walk: bool) -> Sample:
        sample = sample_of(self._server.status(), time.monotonic() - self._start_time)
        if not walk:
            return sample
        found = disk_bytes(self._folder)
        after = sample_of(self._server.status(), time.monotonic() - self._start_time)
        evicted = after.evicted_bytes - sample.evicted_bytes
        excess = found - sample.l2_capacity_bytes - evicted
        return msgspec.structs.replace(after, disk_bytes=found, disk_excess_bytes=max(0, excess))

    def _run(self) -> None:
        due = time.monotonic()
        try:
            while not self._stop.wait(max(0.0, due - time.monotonic())):
                self.samples.append(self.take(walk=len(self.samples) % WALK_EVERY == 0))
                due = max(due + PERIOD_SECONDS, time.monotonic() - PERIOD_SECONDS)
        except Exception as error:  # noqa: BLE001 - a thread's top: the run is worth nothing without samples, and says so
            self.fault = f"{type(error).__name__}: {error}"
