"""What `--l1-verify-reads` costs: store and retrieve through shared memory, with and without it in turns.

    .venv/bin/python -m benchmarks.verify_reads [--rounds 30]

Two servers run at once, and each round asks both for the same, the one that is first by turns.  Prints the medians of both
and the median of the rounds' ratios, with their quartiles.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from demo.server_process import HOST, ServerProcess
from lmcache_devkit.fake_engine import FakeEngine

CHUNKS, CHUNK_TOKENS = 4, 256
SHAPES = {"1 MiB": (2, 256), "32 MiB": (8, 2048)}
"""Layers and hidden size of chunks, in float32."""
WARM_ROUNDS = 3


class Engine(FakeEngine):
    """Its bytes cost nothing to make."""

    def content(self, tokens: Sequence[int], chunk: int) -> bytes:
        return self._blob

    def register(self) -> bool:
        self._blob = bytes(range(256)) * (self.layout.payload_bytes // 256)
        return super().register()


def once(engine: Engine, number: int) -> tuple[float, float]:
    """Milliseconds of a store and of a retrieve."""
    tokens, request = [number + 1] * (CHUNKS * CHUNK_TOKENS), f"r{number}"
    start_time = time.perf_counter()
    stored = engine.store(tokens, request)
    between = time.perf_counter()
    found = engine.retrieve(tokens, request)
    ended = time.perf_counter()
    assert stored
    assert found is not None
    engine.end(request)
    return (between - start_time) * 1e3, (ended - between) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    print(f"| {CHUNKS} chunks of | what | without, ms | with, ms | ratio (quartiles) |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        servers = [
            stack.enter_context(
                ServerProcess(["--chunk-size", str(CHUNK_TOKENS), "--l1-size-gb", "1", *flags], Path(folder) / name)
            )
            for name, flags in (("without", ()), ("with", ("--l1-verify-reads",)))
        ]
        for size, (layers, hidden) in SHAPES.items():
            times: list[list[tuple[float, float]]] = [[], []]
            with ExitStack() as open_engines:
                engines = [
                    open_engines.enter_context(
                        Engine(f"tcp://{HOST}:{server.port}", model=size, layers=layers, hidden=hidden)
                    )
                    for server in servers
                ]
                for number in range(rounds + WARM_ROUNDS):
                    for which in (0, 1) if number % 2 else (1, 0):
                        times[which].append(once(engines[which], number))
            for at, what in enumerate(("store", "retrieve")):
                without, with_it = ([each[at] for each in of[WARM_ROUNDS:]] for of in times)
                low, middle, high = statistics.quantiles([b / a for a, b in zip(without, with_it, strict=True)], n=4)
                cells = f"{statistics.median(without):.2f} | {statistics.median(with_it):.2f}"
                print(f"| {size} | {what} | {cells} | {middle:.2f} ({low:.2f} to {high:.2f}) |", flush=True)


if __name__ == "__main__":
    main()
