"""fio in the directory of an adapter, as the measure of what that disk does at this moment."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.l2_cell import Speed
from benchmarks.peer import BenchmarkError
from lmcache_tools.bench.lane import Step, Verb

AUTO: Final = "auto"
ENGINES: Final = (AUTO, "io_uring", "libaio", "psync")
_SECONDS_MAX: Final = 120


def is_installed() -> bool:
    return shutil.which("fio") is not None


def engine_for(asked: str, is_direct: bool) -> str:
    """`auto` is what is fastest: the file systems of these machines take buffered writes of a ring one after the other."""
    if asked != AUTO:
        return asked
    return "io_uring" if is_direct else "psync"


@dataclass(frozen=True, slots=True)
class Fio:
    """Moves as many bytes as the steps would, in blocks of an object, `depth` at a time.

    A store writes new files, whose blocks fio has the file system reserve before its clock runs; a load reads what the last
    store wrote.  psync has a process for each block in flight, the others have one.  With `file_per_object` each object is a
    file, opened before the clock runs, so that the kernel cannot read ahead from one object into the next; else each
    process has one file."""

    folder: Path
    is_direct: bool
    depth: int
    engine: str
    file_per_object: bool = False

    name = "fio"

    def command(self, steps: Sequence[Step]) -> list[str]:
        size, count = steps[0].buffer.length, len(steps)
        jobs = min(self.depth, count) if self.engine == "psync" else 1
        return [
            "fio",
            "--name=bench",
            f"--directory={self.folder}",
            "--filename_format=bench.$jobnum.$filenum.fio",
            f"--nrfiles={count // jobs if self.file_per_object else 1}",
            f"--rw={'write' if steps[0].verb is Verb.STORE else 'read'}",
            f"--bs={size}",
            f"--size={count // jobs * size}",
            f"--numjobs={jobs}",
            f"--ioengine={self.engine}",
            f"--iodepth={1 if self.engine == 'psync' else self.depth}",
            f"--direct={int(self.is_direct)}",
            "--invalidate=0",  # the page cache is dropped for both sides, or for none
            "--group_reporting",
            "--output-format=json",
        ]

    def run(self, steps: Sequence[Step]) -> Speed:
        """Raises BenchmarkError when fio fails."""
        if steps[0].verb is Verb.STORE:
            self.clear()
        command = self.command(steps)
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS_MAX, check=False)
        except subprocess.TimeoutExpired:
            raise BenchmarkError(f"fio did not end within {_SECONDS_MAX} s: {' '.join(command)}") from None
        if done.returncode:
            raise BenchmarkError(f"fio failed: {done.stderr.strip()[-500:] or done.stdout[-500:]}")
        return speed(json.loads(done.stdout[done.stdout.index("{") :]))

    def clear(self) -> None:
        for file in self.folder.glob("bench.*.fio"):
            file.unlink()


def speed(report: dict[str, Any]) -> Speed:
    """From fio's JSON: bytes over the time of its run, and the CPU of its jobs, without what the kernel's own workers do."""
    job = report["jobs"][0]
    moved = next(job[way] for way in ("write", "read") if job[way]["io_bytes"])
    seconds = moved["runtime"] / 1000
    busy = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1000
    return Speed(moved["io_bytes"] / 1e9 / seconds, busy / (moved["io_bytes"] / 1e9))
