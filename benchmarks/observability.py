"""What metrics cost: server CPU of lookups with and without them, and memory with very many models and salts.

    .venv/bin/python -m benchmarks.observability [--rounds 3] [--scale 1.0]

One server for each case, in turn: nothing listens to events, only the log does, or all that is active by default
(metrics, log, slow requests, recent events).  CPU is that of the whole process, until all events are worked off.
"""

from __future__ import annotations

import argparse
import datetime
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from statistics import median
from typing import Final

import psutil

from benchmarks import machine
from benchmarks.frames import LookupCycle
from benchmarks.peer import Peer
from benchmarks.prompts import Prompt
from benchmarks.results import Results
from benchmarks.rows.site import Figures, Site
from demo.environment import quiet_environment
from demo.server_process import LMCACHE, ServerProcess
from lmcache_core import Event, LookupFinished, LookupHashes
from lmcache_devkit.fake_server_view import FakeServerView
from lmcache_observability.metrics.open_metrics import open_metrics
from lmcache_observability.metrics.settings import MetricsSettings
from lmcache_observability.samples.catalogue import SAMPLE_KINDS

CHUNKS: Final = 64
CYCLES: Final = 2000
WORK_OFF_SECONDS: Final = 0.5
PASSES: Final = 7
EVENTS_PER_BATCH: Final = 150
"""Some 50 ms of a thousand lookups per second."""
PAIRS: Final = 10_000
PAIRS_IN_READINGS: Final = 1024
"""As many models and salts as core counts apart."""
CASES: Final[Mapping[str, tuple[str, ...]]] = {
    "nothing": ("--disable-observability",),
    "log": ("--no-plugin", "observability"),
    "default": (),
}
MIB: Final = 2**20


def lookups(options: tuple[str, ...], folder: Path, scale: float) -> Figures:
    """Server CPU of the lookup of a known prompt."""
    started = ServerProcess(["--l1-size-gb", "0.5", "--no-http", *options], folder / "log", executable=LMCACHE)
    with started as server, Peer(server.port) as peer:
        peer.register()
        site = Site(peer, server.port, server.pid, True, scale)
        prompt = Prompt(CHUNKS, 1)
        peer.store_prompt(prompt, "store")
        cycles = [LookupCycle(prompt.token_ids(), CHUNKS, f"r{number}") for number in range(site.times(CYCLES))]
        for one in cycles[: len(cycles) // 10]:
            peer.look_up(one)
        time.sleep(WORK_OFF_SECONDS)
        rest = cycles[len(cycles) // 10 :]
        with site.server_cpu() as cpu:
            for one in rest:
                peer.look_up(one)
            time.sleep(WORK_OFF_SECONDS)
        return {"cycle_cpu_us": cpu.seconds / len(rest) * 1e6}


def events(count: int, pairs: int) -> Iterator[Event]:
    """Those of `count` lookups by as many tenants as there are pairs of 100 models and their salts."""
    hashes = [Random(number).randbytes(32 * CHUNKS) for number in range(16)]
    for number in range(count):
        model, salt, request = f"model-{number % 100}", f"salt-{number % pairs // 100}", f"request-{number}"
        yield LookupHashes(
            request_id=request,
            model_name=model,
            cache_salt=salt,
            world_size=1,
            prompt_tokens=CHUNKS * 256,
            chunk_hashes=hashes[number % 16],
        )
        yield LookupFinished(
            request_id=request,
            model_name=model,
            cache_salt=salt,
            requested_chunks=CHUNKS,
            hit_chunks=CHUNKS,
            l2_chunks=0,
            seconds=0.001,
        )


def alone() -> Figures:
    """The subscriber in a process of its own: CPU for each event, and what it keeps of many tenants."""
    metrics = open_metrics(MetricsSettings.model_validate({"label_values_max": PAIRS}))
    calls = metrics.subscriptions()
    some, taken = list(events(2000, 1)), []
    for _ in range(PASSES):
        start_time = time.thread_time()
        for number, event in enumerate(some):
            calls[type(event)](event)
            if number % EVENTS_PER_BATCH == 0:
                metrics.batch_done()
        metrics.batch_done()
        taken.append((time.thread_time() - start_time) / len(some) * 1e6)
    figures = {"event_us": median(taken)}
    before = psutil.Process().memory_info().rss
    for event in events(2 * PAIRS, PAIRS):
        calls[type(event)](event)
    metrics.batch_done()
    pairs = [(f"model-{number % 100}", f"salt-{number // 100}") for number in range(PAIRS_IN_READINGS)]
    by_tenant = [kind for kind in SAMPLE_KINDS if kind.labels == ("model_name", "cache_salt")]
    metrics.begin(
        FakeServerView(kinds=SAMPLE_KINDS, values=[kind.of(1, *pair) for kind in by_tenant for pair in pairs])
    )
    start_time = time.thread_time()
    figures["scrape_mib"] = len(metrics.expose("").body) / MIB
    figures["scrape_cpu_ms"] = (time.thread_time() - start_time) * 1e3
    figures["memory_mib"] = (psutil.Process().memory_info().rss - before) / MIB
    metrics.close()
    return figures


def in_another_process() -> Figures:
    command = [sys.executable, "-m", "benchmarks.observability", "--alone"]
    done = subprocess.run(command, env=quiet_environment(), capture_output=True, text=True, timeout=300, check=True)
    return {name: float(value) for name, value in (line.split() for line in done.stdout.splitlines())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the usual number of lookups")
    parser.add_argument("--alone", action="store_true", help="only the subscriber, in this process")
    args = parser.parse_args()
    if args.alone:
        print("\n".join(f"{name} {value}" for name, value in alone().items()))
        return
    start_time, started = time.monotonic(), datetime.datetime.now(datetime.UTC)
    results = Results(
        what="observability",
        started_at=started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        machine=machine.description(),
        limits=machine.limits(),
        subjects={name: " ".join(options) or "as installed" for name, options in CASES.items()},
    )
    with tempfile.TemporaryDirectory() as folder:
        for number in range(args.rounds):
            for name, options in CASES.items():
                results.add(name, number, lookups(options, Path(folder), args.scale))
            results.add("default", number, in_another_process())
    results.seconds = round(time.monotonic() - start_time)
    for figure in ("cycle_cpu_us", "event_us", "memory_mib", "scrape_cpu_ms", "scrape_mib"):
        for name in CASES:
            if spread := results.spread(figure, name):
                ratio = results.ratios(figure, name, "nothing")
                beside = f"   {ratio.median:5.3f} times that of nothing" if ratio else ""
                print(f"{figure:14} {name:8} {spread.median:9.2f}{beside}")
    print(f"kept in {results.save()}")


if __name__ == "__main__":
    main()
