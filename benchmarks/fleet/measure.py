"""Measures one subject, in a process of its own:

    PYTHON -m benchmarks.fleet.measure SUBJECT INSTANCES CHUNKS COMMON

prints one JSON line.  CPU time of this thread, because other programs run on the machine; what is made of the keys
beforehand (messages, integers) is not counted."""

from __future__ import annotations

import gc
import json
import logging
import os
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.fleet.keys import COMMON, hashes

LOOKUPS = 3_000
BATCHES = 100
BATCH = 512
PREFIXES = 200
GONE = 5
"""Instances that leave at the end."""
LEAST_SECONDS = 0.2
"""What is quick is done again until it has taken this long."""


def subject(name: str) -> Any:
    """With `prepared`, `report`, `found` and `deregister`; `prefixes` and `sweep` where it has them."""
    if name in ("native", "pure"):
        from benchmarks.fleet import ours

        return {"native": ours.native, "pure": ours.pure}[name]()
    if name in ("S0", "S1", "S2"):
        from benchmarks.fleet import designs

        return {"S0": designs.Flat, "S1": designs.Tree, "S2": designs.TreeWithIndex}[name]()
    from benchmarks.fleet import public

    return {"KeyDirectory": public.PublicDirectory, "RegistryTree": public.PublicTree}[name]()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(call: Callable[[], object]) -> float:
    start = time.thread_time()
    call()
    return time.thread_time() - start


def each_seconds(calls: list[Callable[[], object]]) -> float:
    """CPU seconds of one call, on average."""
    done, taken = 0, 0.0
    while taken < LEAST_SECONDS:
        start = time.thread_time()
        for call in calls:
            call()
        taken += time.thread_time() - start
        done += len(calls)
    return taken / done


def measure(name: str, instances: int, chunks: int, common: int) -> dict[str, float]:
    it = subject(name)
    hashes(1, 0, chunks, common)
    gc.collect()
    before, reports = resident_bytes(), []
    for instance in range(1, instances + 1):
        prepared = it.prepared(instance, hashes(instance, 0, chunks, common))
        reports.append(cpu_seconds(partial(it.report, instance, prepared)))
        del prepared
    gc.collect()
    figures = {
        "placements": float(instances * chunks),
        "bytes_per_placement": (resident_bytes() - before) / (instances * chunks),
        "report_ms": median(reports) / chunks * 1e9,
        "report_worst_ms": max(reports) / chunks * 1e9,
    }
    chooser = random.Random(3)

    def keys(count: int, run: bool = False) -> Any:
        """To look up: of an instance each, or one behind the other of the common ones."""
        if run:
            first = chooser.randrange(max(1, common - count))
            return it.prepared(COMMON, hashes(1, first, count, common))
        packed = b"".join(
            hashes(chooser.randint(1, instances), chooser.randrange(chunks), 1, common) for _ in range(count)
        )
        return it.prepared(COMMON, packed)

    look = getattr(it, "look", it.found)  # ours counts what it found apart

    def looks(prepared: list[Any]) -> list[Callable[[], object]]:
        return [partial(look, one) for one in prepared]

    if any(it.found(one) != 1 for one in [keys(1) for _ in range(10)]):
        raise SystemExit(f"{name} does not find what was reported to it")
    figures["same_ns"] = each_seconds(looks([keys(1)]) * 1000) * 1e9
    figures["random_ns"] = each_seconds(looks([keys(1) for _ in range(LOOKUPS)])) * 1e9
    figures["batch_ns"] = each_seconds(looks([keys(BATCH) for _ in range(BATCHES)])) / BATCH * 1e9
    if common and hasattr(it, "prefixes"):
        runs = [keys(BATCH, run=True) for _ in range(PREFIXES)]
        figures["prefix_us"] = each_seconds([partial(it.prefixes, one) for one in runs]) * 1e6
    gone = [cpu_seconds(partial(it.deregister, instance)) for instance in range(1, GONE + 1)]
    figures["deregister_ms"] = median(gone) * 1e3
    if hasattr(it, "sweep"):
        steps, more = [], True
        while more:
            start = time.thread_time()
            more = it.sweep()
            steps.append(time.thread_time() - start)
        figures["sweep_worst_ms"] = max(steps) * 1e3
    return figures


def main() -> None:
    logging.disable(logging.WARNING)
    name, *numbers = sys.argv[1:]
    instances, chunks, common = map(int, numbers)
    print(json.dumps(measure(name, instances, chunks, common)), flush=True)
    os._exit(0)  # to free all of it, one object at a time, takes longer than to measure it


if __name__ == "__main__":
    main()
