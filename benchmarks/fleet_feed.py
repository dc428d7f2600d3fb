"""What membership in a fleet costs a server: its CPU time per stored chunk, beside a server outside of a fleet.

    .venv/bin/python -m benchmarks.fleet_feed [--pairs 15] [--chunks 16000]

Both servers run all the time and are given the same prompts in turns, so that what else the machine does meets both.  L1 is
full from the first round on: each stored chunk evicts another one, and both are sent, once per second, to a real coordinator.
The last figure is the lag: from the answer to a store until the coordinator says that the server has the chunks."""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from benchmarks.cpu_clock import cpu_seconds
from benchmarks.machine import description
from demo.server_process import ServerProcess
from lmcache_devkit.fake_engine import FakeEngine
from plugins.coordinator.tests.coordinator_process import CoordinatorProcess

CHUNK_TOKENS: Final = 16
PROMPT_CHUNKS: Final = 32
FLUSH_SECONDS: Final = 0.1
"""Of the member whose lag is measured."""
LAGS: Final = 200


def prompts() -> Iterator[list[int]]:
    """Each once."""
    size = CHUNK_TOKENS * PROMPT_CHUNKS
    return ([number % 50_000, *range(number, number + size - 1)] for number in itertools.count(1, size))


def server(folder: Path, name: str, *options: str) -> ServerProcess:
    common = ("--l1-size-gb", "0.1", "--chunk-size", str(CHUNK_TOKENS), "--instance-id", name)
    return ServerProcess([*common, *options], folder / f"{name}.log")


def store(engine: FakeEngine, process: int, some: list[list[int]]) -> float:
    """CPU seconds of the server."""
    start = cpu_seconds(process)
    for prompt in some:
        if not engine.store(prompt):
            raise SystemExit("a store was refused")
    return cpu_seconds(process) - start


def lags(coordinator: CoordinatorProcess, engine: FakeEngine, source: Iterator[list[int]], name: str) -> list[float]:
    """Seconds, sorted."""
    found: list[float] = []
    for prompt in itertools.islice(source, LAGS):
        engine.store(prompt)
        stored = time.monotonic()
        asked = {"model": "model", "token_ids": prompt}
        while True:
            known = coordinator.ask("POST", "/query", asked).body["default"].get(name)
            if known and known["longest_matched"] == len(prompt):
                break
            time.sleep(0.002)
        found.append(time.monotonic() - stored)
    return sorted(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--chunks", type=int, default=16_000, help="of each server in each pair")
    args = parser.parse_args()
    print(description())
    with tempfile.TemporaryDirectory() as path, ExitStack() as stack:
        folder = Path(path)
        coordinator = stack.enter_context(CoordinatorProcess(folder))
        to = ("--coordinator-url", coordinator.url)
        servers = [
            stack.enter_context(server(folder, "alone")),
            stack.enter_context(server(folder, "member", *to)),
            stack.enter_context(server(folder, "quick", *to, "--coordinator-event-flush-interval", str(FLUSH_SECONDS))),
        ]
        alone, member, quick = (
            stack.enter_context(FakeEngine(f"tcp://127.0.0.1:{each.port}", layers=1, hidden=16)) for each in servers
        )
        source, ratios, each_us = prompts(), [], []
        for number in range(args.pairs + 1):
            some = list(itertools.islice(source, args.chunks // PROMPT_CHUNKS))
            pair = [(alone, servers[0].pid), (member, servers[1].pid)]
            taken = {engine: store(engine, process, some) for engine, process in pair[:: 1 if number % 2 else -1]}
            if number:  # the first fills L1
                ratios.append(taken[member] / taken[alone])
                each_us.append(taken[alone] / args.chunks * 1e6)
        ratios.sort()
        print(
            f"CPU per stored chunk: {statistics.median(each_us):.1f} us alone; as a member {statistics.median(ratios):.3f} "
            f"of it ({len(ratios)} pairs, quartiles {ratios[len(ratios) // 4]:.3f} to {ratios[-len(ratios) // 4]:.3f})"
        )
        found = lags(coordinator, quick, source, "quick")
        print(
            f"lag with a flush interval of {FLUSH_SECONDS * 1e3:.0f} ms: p50 {statistics.median(found) * 1e3:.0f} ms, "
            f"p99 {found[int(len(found) * 0.99)] * 1e3:.0f} ms"
        )


if __name__ == "__main__":
    main()
