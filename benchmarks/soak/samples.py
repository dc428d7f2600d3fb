"""What a server holds at a moment: memory, descriptors, threads, and its own books."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import psutil

from benchmarks.results import FOLDER
from benchmarks.soak.trend import Trend
from demo.server_process import ServerProcess


class Sample(msgspec.Struct, frozen=True):
    seconds: float
    requests: int
    anonymous_bytes: int
    """Memory that is the process's own; neither L1's segment nor mapped files."""
    resident_bytes: int
    unique_bytes: int
    descriptors: int
    threads: int
    leases: int
    lookups_open: int
    held: int
    quarantined: int
    cached: int
    workers: int
    state_counts_add_up: bool
    healthy: bool


class Soak(msgspec.Struct, kw_only=True):
    """A whole run."""

    started_at: str
    minutes: float
    compression: float
    engines: int
    options: list[str]
    machine: dict[str, str]
    warm_up_seconds: float
    trend: Trend | None = None
    """Anonymous bytes per 1,000 requests after the warm-up."""
    tolerance: float
    samples: list[Sample] = []
    before: Sample | None = None
    after: Sample | None = None
    """When the engines had gone and every deadline had passed."""
    tally: dict[str, int] = {}
    complaints: list[str] = []

    @property
    def warm(self) -> list[Sample]:
        return [sample for sample in self.samples if sample.seconds >= self.warm_up_seconds]

    @property
    def late(self) -> list[Sample]:
        """The second half."""
        return self.samples[len(self.samples) // 2 :]

    def save(self, folder: Path = FOLDER) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.started_at.replace(':', '').replace('-', '')}-soak.json"
        path.write_bytes(msgspec.json.encode(self) + b"\n")
        return path


class Sampler:
    """Samples one server."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._process = psutil.Process(server.pid)
        self._start_time = time.monotonic()

    def take(self) -> Sample:
        status: dict[str, Any] = self._server.status()
        memory = self._process.memory_full_info()
        l1 = status["l1"]
        return Sample(
            round(time.monotonic() - self._start_time, 2),
            status["requests"]["requests"],
            anonymous_bytes(self._process.pid),
            memory.rss,
            memory.uss,
            self._process.num_fds(),
            self._process.num_threads(),
            l1["leases"],
            status["lookups_open"],
            l1["held"],
            l1["quarantined"],
            l1["cached"],
            len(status["workers"]),
            l1["state_counts_add_up"],
            status["state"] != "unhealthy",
        )


def anonymous_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"/proc/{pid}/status does not say how much memory is anonymous")
