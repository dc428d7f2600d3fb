"""Whether blended KV costs answers: real vLLM, and a model that must look into earlier documents.

    .venv/bin/python -m benchmarks.blend_quality                              # 500 prompts, twice; an hour on two cores
    .venv/bin/python -m benchmarks.blend_quality --prompts 40 --ratios 0.15   # some minutes

One server and one engine for each way of storing.  A prompt has 8 documents of 64 tokens, each stored beforehand: alone, or
behind three others.  Its question is about one document, or across several, in turns.  It is asked once in each way to
compute it: `none` reuses all that is stored, its K turned to the new place or not; `check layers only` computes layers up to
the check layer and reuses the rest; selectors compute that share of the tokens in all layers, `random` any; `full` computes
everything.
"""

from __future__ import annotations

import argparse
import datetime
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks import machine
from benchmarks.blend_quality.prompts import LENGTH, WAYS, Way, prompts
from benchmarks.blend_quality.run import FIGURES, Score, run
from benchmarks.blend_quality.selectors import Row, rows
from benchmarks.peer import BenchmarkError
from benchmarks.results import Results
from demo.engine_process import EngineProcess
from demo.server_process import ServerProcess

HERE: Final = Path(__file__).parent
SELECTORS: Final = ("random", "lego_link", "block_start", "cacheblend", "question")
SERVER: Final = ("--engine-type", "blend", "--chunk-size", str(LENGTH), "--l1-size-gb", "1")
INDEXED_SECONDS: Final = 60.0
RATIOS: Final = (0.05, 0.10, 0.15, 0.20)
HEADS: Final = ("right within", "right across", "agrees with full", "tokens computed", "first token, ms")


def engine(port: int, check_layer: int, log_path: Path) -> EngineProcess:
    return EngineProcess(
        log_path,
        port=port,
        connector="own",
        extra={"lmcache.blend": "requests", "lmcache.blend_check_layers": [check_layer]},
        model=HERE / "model",
        driver=HERE / "engine.py",
        options=["--max-model-len", "2048"],
        one_process=True,
    )


def wait_indexed(server: ServerProcess, chunks: int) -> None:
    """Storing, and the index behind it, are off the request's path."""
    deadline = time.monotonic() + INDEXED_SECONDS
    while (added := server.status()["modules"]["blend"]["chunks_added"]) < chunks:
        if time.monotonic() > deadline:
            raise BenchmarkError(f"{added} of {chunks} chunks were indexed after {INDEXED_SECONDS:.0f} s")
        time.sleep(0.02)


def measure(way: Way, count: int, asked: list[Row], check_layer: int) -> Mapping[str, Score]:
    with (
        tempfile.TemporaryDirectory() as name,
        ServerProcess(SERVER, Path(name) / "server.log") as server,
        engine(server.port, check_layer, Path(name) / "engine.log") as asks,
    ):
        return run(asks, prompts(way, count), asked, partial(wait_indexed, server))


def shown(results: Results, way: Way) -> str:
    """The table of one way of storing."""
    lines = [f"| documents stored {way} | {' | '.join(HEADS)} |", "|" + "---|" * (len(HEADS) + 1)]
    for row in results.subjects:
        values = [results.samples[f"{figure}, {way}"][row]["0"] for figure in FIGURES]
        shares = [f"{value:.1%}" for value in values[:3]]
        lines.append(f"| {row} | {' | '.join(shares)} | {values[3]:.0f} | {values[4]:.1f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.blend_quality",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--prompts", type=int, default=500)
    parser.add_argument("--ratios", type=float, nargs="+", default=RATIOS)
    parser.add_argument("--check-layer", type=int, default=3, help="whose K is compared (default: %(default)s)")
    args = parser.parse_args()
    asked = rows(args.ratios, SELECTORS)
    start_time, started = time.monotonic(), datetime.datetime.now(datetime.UTC)
    results = Results(
        what="blend-quality",
        started_at=started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        machine=machine.description() | {"check layer": str(args.check_layer), "prompts": str(args.prompts)},
        subjects={row.name: row.name for row in asked},
    )
    for way in WAYS:
        for name, score in measure(way, args.prompts, asked, args.check_layer).items():
            results.add(name, 0, {f"{figure}, {way}": value for figure, value in score.figures().items()})
        print(shown(results, way) + "\n", flush=True)
    results.seconds = time.monotonic() - start_time
    print(results.save())


if __name__ == "__main__":
    main()
