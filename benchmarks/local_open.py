"""What a cache inside of a process costs: to open it, and for the chunks that it knows.

.venv/bin/python -m benchmarks.local_open [--rounds 5] [--chunks 100000]

Two L2 adapters, files and memory.  Resident memory is without that of L1, which is what was asked for.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from demo.environment import core_environment

AT_ONCE = 500
SETTLE_SECONDS = 0.5
"""The stacks of the cache's threads count towards its memory, so all of them run before it is read."""


def resident_bytes(address: int = 0, length: int = 0) -> int:
    """Of this process, without the mappings that lie there.  From one reading: memory is allocated meanwhile."""
    found, is_inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, _, rest = line.partition(" ")
        if "-" in first and not first.endswith(":"):
            begin, end = (int(each, 16) for each in first.split("-"))
            is_inside = begin < address + length and address < end
        elif first == "Rss:" and not is_inside:
            found += int(rest.split()[0]) * 1024
    return found


def measure(adapters: list[dict[str, str]], chunks: int) -> dict[str, float]:
    """In a process that has imported nothing else."""
    bare = resident_bytes()
    import lmcache_core.app.local_cache  # noqa: F401 - what is imported is not what is opened
    from lmcache_core import HashChain, KeySpace, StoredSpace, open_local

    imported = resident_bytes()
    began, began_cpu = time.perf_counter(), time.process_time()
    cache = open_local({"l1_size_gb": 2.0, "plugins": ["fs"], "l2_adapter": adapters})
    wall, cpu = time.perf_counter() - began, time.process_time() - began_cpu

    def beside_l1() -> int:
        return resident_bytes(cache.region.address, cache.region.length)

    time.sleep(SETTLE_SECONDS)
    opened = beside_l1()
    space = StoredSpace(KeySpace("m", 0, 0, "", 16, HashChain.BLAKE3, bytes(16)), 64)
    for first in range(0, chunks, AT_ONCE):
        hashes = [number.to_bytes(32, "big") for number in range(first, first + AT_ONCE)]
        references, indexes = cache.storage.reserve(1, space, hashes, may_wait=lambda: True)
        if len(indexes) != AT_ONCE:
            raise SystemExit(f"{len(indexes)} of {AT_ONCE} chunks found room behind {first}")
        cache.storage.publish(references, 0, "r")
    figures = {f"{chunks:,} chunks more, MB": (beside_l1() - opened) / 1e6}
    if not chunks:
        figures = {
            "import, MB": (imported - bare) / 1e6,
            "open, ms": wall * 1e3,
            "open, ms of CPU": cpu * 1e3,
            "after opening, MB": (opened - bare) / 1e6,
        }
    cache.close(60.0)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--chunks", type=int, default=100_000)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.folder:
        print(json.dumps(measure([{"type": "fs", "base_path": given.folder}, {"type": "memory"}], 0)))
        return
    if given.rounds == 0:  # without adapters: one of them keeps its objects in memory, too
        print(json.dumps(measure([], given.chunks)))
        return
    rounds: list[dict[str, float]] = []
    for _ in range(given.rounds):
        with tempfile.TemporaryDirectory() as folder:
            opened = child("--folder", folder)
        rounds.append(opened | child("--rounds", "0", "--chunks", str(given.chunks)))
    print("| figure | median (range) |\n|---|---|")
    for name in rounds[0]:
        values = sorted(each[name] for each in rounds)
        print(f"| {name} | {statistics.median(values):.1f} ({values[0]:.1f} to {values[-1]:.1f}) |")


def child(*arguments: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.local_open", *arguments]
    done = subprocess.run(command, env=core_environment(), capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    found: dict[str, float] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    main()
