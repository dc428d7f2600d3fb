"""What subscribers to events cost requests: none, five that do nothing, one that hangs beside one that raises
and one that keeps what it is given, and one that computes without end.

    .venv/bin/python -m benchmarks.observers [--rounds 3] [--scale 1.0]

One server for each case, in turn.  A cycle is the lookup of a known prompt of 64 chunks, the answers of which carry seven
events.  Publishing alone is measured in this process: CPU time of the thread that publishes.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks import machine
from benchmarks.bad_observers import BURNING, FAULTY, GOOD, Hangs, Idle
from benchmarks.frames import LookupCycle
from benchmarks.peer import Peer
from benchmarks.prompts import Prompt
from benchmarks.results import Results
from benchmarks.rows.site import Figures, Site, quantile, steady
from benchmarks.transfer import ROOT
from demo.server_process import LMCACHE, ServerProcess
from lmcache_core.app.commands.server import take_turns
from lmcache_core.contracts.events import LookupFinished
from lmcache_core.contracts.subscriber import Subscriber
from lmcache_core.events.bus import EventBus
from lmcache_core.events.subscriber_calls import AskedSubscriber
from lmcache_core.events.subscriber_queue import QueueLimits

CHUNKS: Final = 64
CYCLES: Final = 2000
PUBLISHED: Final = 1000
CASES: Final[Mapping[str, tuple[str, ...]]] = {"none": (), "idle": GOOD, "faulty": FAULTY, "burning": BURNING}
FIGURES: Final = ("cycle_cpu_ms", "cycle_wait_ms", "cycle_wait_p99_ms", "cycles_s")
_ENTRY_POINT: Final = "[lmcache.plugins.v1]\nbad-observers = benchmarks.bad_observers\n"
_METADATA: Final = "Metadata-Version: 2.1\nName: bad-observers\nVersion: 1\nRequires-Dist: lmcache-core\n"


@contextmanager
def installed(folder: Path) -> Iterator[None]:
    """Servers that are started meanwhile find the plugin."""
    about = folder / "bad_observers-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(_METADATA)
    (about / "entry_points.txt").write_text(_ENTRY_POINT)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{folder}{os.pathsep}{ROOT}"
    yield
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


def requests(subscribers: tuple[str, ...], folder: Path, scale: float) -> Figures:
    """Lookups one after another, beside these subscribers and no others."""
    options = ["--l1-size-gb", "0.5", "--no-http"]
    if subscribers:
        settings: dict[str, dict[str, str]] = {f"subscriber:{name}": {} for name in subscribers}
        options += ["--plugin", "bad-observers", "--offer-settings", json.dumps(settings)]
    else:
        options += ["--disable-observability"]
    server = ServerProcess(options, folder / "server.log", executable=LMCACHE)
    server.start()
    try:
        with Peer(server.port) as peer:
            peer.register()
            site = Site(peer, server.port, server.pid, True, scale)
            prompt = Prompt(CHUNKS, 1)
            peer.store_prompt(prompt, "store")
            cycles = [LookupCycle(prompt.token_ids(), CHUNKS, f"r{number}") for number in range(site.times(CYCLES))]
            cpu_seconds, waits, start_time = [], [], time.monotonic()
            for one in cycles:
                with site.server_cpu() as cpu:
                    waits.append(peer.look_up(one))
                cpu_seconds.append(cpu.seconds)
            seconds = time.monotonic() - start_time
    finally:
        server.stop()
    return {
        "cycle_cpu_ms": steady(cpu_seconds) * 1e3,
        "cycle_wait_ms": quantile(sorted(waits), 0.5) * 1e3,
        "cycle_wait_p99_ms": quantile(sorted(waits), 0.99) * 1e3,
        "cycles_s": len(cycles) / seconds,
    }


def publish_us(subscribers: Mapping[str, Subscriber], rounds: int = 9) -> float:
    """CPU microseconds of one publish, beside threads that deliver."""
    asked = {name: AskedSubscriber(each, each.subscriptions()) for name, each in subscribers.items()}
    bus = EventBus(asked, QueueLimits(10_000))
    for name, run in bus.threads():
        threading.Thread(target=run, name=name, daemon=True).start()
    event = LookupFinished("request", "model", "salt", 64, 64, 0, 0.001)
    taken = []
    for _ in range(rounds):
        start_time = time.thread_time()
        for _ in range(PUBLISHED):
            bus.publish(event)
        taken.append((time.thread_time() - start_time) / PUBLISHED * 1e6)
        time.sleep(0.2)
    bus.close(0.1)
    return median(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the usual number of lookups")
    args = parser.parse_args()
    start_time, started = time.monotonic(), datetime.datetime.now(datetime.UTC)
    results = Results(
        what="observers",
        started_at=started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        machine=machine.description(),
        limits=machine.limits(),
        subjects={name: ", ".join(subscribers) or "no subscribers" for name, subscribers in CASES.items()},
    )
    take_turns()
    with tempfile.TemporaryDirectory() as folder, installed(Path(folder)):
        for number in range(args.rounds):
            publishing = {
                "none": publish_us({}),
                "idle": publish_us({name: Idle() for name in GOOD}),
                "faulty": publish_us({"hangs": Hangs(), **{name: Idle() for name in GOOD[1:]}}, rounds=30),
            }
            for name, subscribers in CASES.items():
                figures = requests(subscribers, Path(folder), args.scale)
                results.add(name, number, figures)
            for name, microseconds in publishing.items():
                results.add(name, number, {"publish_us": microseconds})
    results.seconds = round(time.monotonic() - start_time)
    for figure in (*FIGURES, "publish_us"):
        for name in CASES:
            spread, ratio = results.spread(figure, name), results.ratios(figure, name, "none")
            if spread and ratio:
                print(f"{figure:18} {name:7} {spread.median:9.3f}   {ratio.median:5.2f} times that without subscribers")
    print(f"kept in {results.save()}")


if __name__ == "__main__":
    main()
