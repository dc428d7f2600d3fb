"""What it costs to start: CPU time from exec to the first answered ping, and memory when idle.

.venv/bin/python -m benchmarks.startup [--rounds 5] [--public]
.venv/bin/python -m benchmarks.startup --loop [--rounds 5]

`--loop`: only CPU time to the first ping and that of a listing, as shares of a fixed loop of Python in the same round, so that
machines and moments can be compared.  No variable gives a setting there.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from benchmarks.transfer import PUBLIC_SERVER
from demo.environment import core_environment
from demo.server_process import LMCACHE, ServerProcess
from lmcache_devkit import free_port

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time of the process, threads that ended included; children that were waited for, too."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(map(int, fields[11:15])) / TICKS


def measure(make: Callable[[Path], ServerProcess]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        server = make(Path(folder))
        start_time = time.monotonic()
        server.start(timeout_seconds=120)
        cpu, wall = cpu_seconds(server.pid), time.monotonic() - start_time
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


LOOP = compile("n = 0\nfor _ in range(20_000_000):\n    n += 1\n", "loop", "exec")
FS = ["--plugin", "fs", "--l2-adapter"]
ALL = ["--prometheus-port", "0", "--l2-adapter"]


def loop_seconds() -> float:
    started = time.process_time()
    exec(LOOP, {})  # noqa: S102 - a constant; as the body of a module, where names are looked up
    return time.process_time() - started


def ping_seconds(options: list[str]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        adapter = [f'{{"type": "fs", "base_path": "{folder}/l2"}}'] if options[-1] == "--l2-adapter" else []
        command = ["--l1-size-gb", "0.5", *options, *adapter]
        with ServerProcess(command, Path(folder) / "log", core_alone=True) as server:
            return cpu_seconds(server.pid)


def command_seconds(*command: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *command], env=core_environment(), stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def shares(rounds: int) -> None:
    subjects: dict[str, Callable[[], float]] = {
        "core alone": lambda: ping_seconds(["--safe-mode"]),
        "--plugin fs": lambda: ping_seconds(FS),
        "everything installed": lambda: ping_seconds(["--http-port", str(free_port()), *ALL]),
        "plugins list": lambda: command_seconds("-m", "lmcache_core", "plugins", "list"),
        "empty program": lambda: command_seconds("-c", ""),
    }
    rows: dict[str, list[tuple[float, float]]] = {name: [] for name in subjects}
    for _ in range(rounds):
        loop = loop_seconds()
        for name, measured in subjects.items():
            seconds = measured()
            rows[name].append((seconds, seconds / loop))
    print(f"load {os.getloadavg()[0]:.1f}")
    for name, values in rows.items():
        times, parts = [each for each, _ in values], [each for _, each in values]
        print(
            f"{name:20} {statistics.median(times) * 1000:6.0f} ms ({min(times) * 1000:.0f} to {max(times) * 1000:.0f})"
            f"  {statistics.median(parts):.2f} of the loop ({min(parts):.2f} to {max(parts):.2f})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--public", action="store_true", help="the public server as well")
    parser.add_argument("--loop", action="store_true", help="only CPU time, as shares of a fixed loop")
    args = parser.parse_args()
    if args.loop:
        shares(args.rounds)
        return

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
