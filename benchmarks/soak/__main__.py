"""A day of mixed traffic in minutes.

    .venv/bin/python -m benchmarks.soak [--minutes 24] [--compression 60] [--engines 6] [--no-save]

Every duration that the server waits for (how long lookups are held, how long a worker may write, after how long a silent
one is dead, how long prompts are remembered) is the default one divided by the compression, and engines ping as much more
often.  With 60, 24 minutes hold as many expiries, reaps and forgotten prompts as a day does; the requests in between are as
many as the machine can do.  L1 and both L2 adapters are small, so that all of them are full and evicting after a minute.

Ends with status 1 when bytes were wrong, something failed, something was left behind, or memory grows.
"""

from __future__ import annotations

import argparse
import datetime
import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks import machine
from benchmarks.soak.report import text
from benchmarks.soak.samples import Sampler, Soak
from benchmarks.soak.traffic import SoakEngine, Tally
from benchmarks.soak.trend import trend
from demo.server_process import HOST, LMCACHE, ServerProcess

# Defaults of the server, in seconds.
READ_TTL: Final = 300.0
WRITE_TTL: Final = 600.0
SESSION_TTL: Final = 600.0
REAP_TIMEOUT: Final = 120.0
GRACE: Final = 3600.0
PING: Final = 10.0

SHARED_MEMORY: Final = Path("/dev/shm")
SAMPLES: Final = 240
WARM_UP: Final = 1 / 3
WARM_UP_SECONDS: Final = 120.0
"""Share of the run, and least time, after which everything that fills up has filled up.  A run that is hardly longer says
nothing about growth."""
TOLERANCE: Final = 4096.0
"""Bytes per 1,000 requests.  A server that answers 100 requests a second would grow by 34 MB a day at this rate."""


def options(compression: float, folder: Path) -> list[str]:
    seconds = {
        "--l1-read-ttl-seconds": READ_TTL,
        "--l1-write-ttl-seconds": WRITE_TTL,
        "--session-ttl-seconds": SESSION_TTL,
        "--worker-reap-timeout-seconds": REAP_TIMEOUT,
        "--worker-registration-grace-seconds": GRACE,
    }
    eviction = {"eviction_policy": "LRU"}
    disk = {"type": "fs", "base_path": str(folder / "l2"), "max_capacity_gb": 0.08, "eviction": eviction}
    memory = {"type": "memory", "max_size_gb": 0.03, "eviction": eviction}
    return [
        *("--l1-size-gb", "0.0625", "--chunk-size", "64", "--max-workers", "2"),
        *("--l2-adapter", json.dumps(disk), "--l2-adapter", json.dumps(memory)),
        *(word for flag, value in seconds.items() for word in (flag, f"{value / compression:g}")),
    ]


def soak(minutes: float, compression: float, engines: int, folder: Path) -> Soak:
    """One run.  The server and all engines have ended when it returns."""
    tally = Tally()
    server = ServerProcess(options(compression, folder), folder / "server.log", executable=LMCACHE)
    done = Soak(
        started_at=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        minutes=minutes,
        compression=compression,
        engines=engines,
        options=options(compression, Path("FOLDER")),
        machine=machine.description(),
        warm_up_seconds=max(WARM_UP_SECONDS, minutes * 60 * WARM_UP),
        tolerance=TOLERANCE,
    )
    with server:
        sampler = Sampler(server)
        done.before = sampler.take()
        endpoint = f"tcp://{HOST}:{server.port}"
        traffic = [SoakEngine(number, endpoint, PING / compression, tally) for number in range(engines)]
        for engine in traffic:
            engine.start()
        start_time = time.monotonic()
        pause = max(0.25, minutes * 60 / SAMPLES)
        while (passed := time.monotonic() - start_time) < minutes * 60:
            time.sleep(min(pause, minutes * 60 - passed))
            sample = sampler.take()
            done.samples.append(sample)
            if not (sample.healthy and sample.state_counts_add_up):
                tally.complain(
                    f"after {sample.seconds:.0f} s: healthy {sample.healthy}, state counts add up {sample.state_counts_add_up}"
                )
        for engine in traffic:
            engine.stop()
        for engine in traffic:
            engine.join(60.0)
        time.sleep(2 * (WRITE_TTL + REAP_TIMEOUT) / compression + 2.0)
        done.after = sampler.take()
    left = done.after
    for what in ("leases", "lookups_open", "held", "quarantined", "workers"):
        if number := getattr(left, what):
            tally.complain(f"{number} {what} were left behind")
    if left.descriptors > min(sample.descriptors for sample in done.late):
        tally.complain(f"{left.descriptors} descriptors are open without engines, no fewer than with them")
    if left.threads > max(sample.threads for sample in done.late):
        tally.complain(f"{left.threads} threads run without engines, more than with them")
    done.trend = trend([s.requests / 1000 for s in done.warm], [s.anonymous_bytes for s in done.warm])
    done.tally, done.complaints = tally.counts(), tally.complaints
    return done


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=24.0)
    parser.add_argument("--compression", type=float, default=60.0)
    parser.add_argument("--engines", type=int, default=6)
    parser.add_argument("--no-save", action="store_true", help="keep no file in benchmarks/results")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what runs is stopped on the way out
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY, prefix="lmcache-soak-") as folder:
        done = soak(args.minutes, args.compression, args.engines, Path(folder))
    print(text(done))
    if not args.no_save:
        print(f"\nkept in {done.save()}")
    grows = done.trend is not None and done.trend.verdict(done.tolerance) == "grows"
    sys.exit(bool(done.complaints) or grows)


if __name__ == "__main__":
    main()
