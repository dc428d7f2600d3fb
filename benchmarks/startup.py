"""What it costs to start: CPU time from exec to the first answered ping, and memory when idle.

.venv/bin/python -m benchmarks.startup [--rounds 5] [--public]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from benchmarks.transfer import PUBLIC_SERVER
from demo.server_process import LMCACHE, ServerProcess

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time of the process, threads that ended included; children that were waited for, too."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(map(int, fields[11:15])) / TICKS


def measure(make: Callable[[Path], ServerProcess]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        server = make(Path(folder))
        begun = time.monotonic()
        server.start(timeout_seconds=120)
        cpu, wall = cpu_seconds(server.pid), time.monotonic() - begun
        time.sleep(3)
        memory = psutil.Process(server.pid).memory_info()
        before = cpu_seconds(server.pid)
        time.sleep(10)
        idle = (cpu_seconds(server.pid) - before) / 10
        server.stop()
    return {
        "cpu to first ping, s": cpu,
        "wall to first ping, s": wall,
        "resident without shared memory, MB": (memory.rss - memory.shared) / 1e6,
        "resident, MB": memory.rss / 1e6,
        "idle, % of a core": idle * 100,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--public", action="store_true", help="the public server as well")
    args = parser.parse_args()

    def ours(folder: Path) -> ServerProcess:
        adapter = f'{{"type": "fs", "base_path": "{folder}/l2"}}'
        options = ["--l1-size-gb", "2", "--l2-adapter", adapter]
        return ServerProcess(options, folder / "log", executable=LMCACHE)

    def public(folder: Path) -> ServerProcess:
        options = f"--l1-size-gb 2 --no-l1-use-lazy --eviction-policy LRU --shm-name start-{os.getpid()}".split()
        return ServerProcess(options, folder / "log", executable=PUBLIC_SERVER)

    for name, make in [("ours", ours)] + ([("public", public)] if args.public else []):
        results = [measure(make) for _ in range(args.rounds)]
        for figure in results[0]:
            values = [result[figure] for result in results]
            print(f"{name:7} {figure:36} {statistics.median(values):8.2f} ({min(values):.2f} to {max(values):.2f})")


if __name__ == "__main__":
    main()
