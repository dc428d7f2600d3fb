"""Store and retrieve through the stock client: this server and the public one, in turns.

    .venv/bin/python -m benchmarks.transfer [--rounds 3] [--layout 8b|small] [--chunks 4] [--json FILE]

Prints medians over all warm passes, with the spread of the rounds' medians, and the ratio of each pair.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peer import BenchmarkError
from benchmarks.process import Process
from demo.environment import quiet_environment
from demo.server_process import LMCACHE, ServerProcess

ROOT = Path(__file__).resolve().parent.parent
ENGINE_PYTHON = ROOT / ".venv-engine/bin/python"
PUBLIC_SERVER = ROOT / ".venv-engine/bin/lmcache"
FIGURES = ("store_ms", "retrieve_ms", "store_cpu_ms", "retrieve_cpu_ms")


def measure(server: Process, options: Sequence[str]) -> list[dict[str, Any]]:
    """The passes of one freshly started client against one running server."""
    command = [
        str(ENGINE_PYTHON),
        str(ROOT / "benchmarks/stock_client.py"),
        *("--port", str(server.port), "--http-port", str(server.http_port), "--server-pid", str(server.pid)),
        *options,
    ]
    environment = {**quiet_environment(), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise BenchmarkError(f"the client failed:\n{done.stderr[-3000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def servers(log: Path, l1_gb: str) -> dict[str, ServerProcess]:
    name = f"bench-{os.getpid()}"
    public = (
        f"--l1-size-gb {l1_gb} --no-l1-use-lazy --eviction-policy LRU --chunk-size 256 "
        f"--supported-transfer-mode auto --shm-name {name}"
    )
    return {
        "ours": ServerProcess(["--l1-size-gb", l1_gb], log / "ours.log", executable=LMCACHE),
        "public": ServerProcess(public.split(), log / "public.log", executable=PUBLIC_SERVER),
    }


def warm(passes: Sequence[dict[str, Any]], figure: str) -> float:
    """Median over the passes after the first, which touches memory for the first time."""
    return float(statistics.median(value for one in passes if one["pass"] for value in one[figure]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layout", default="8b")
    parser.add_argument("--chunks", default="4")
    parser.add_argument("--l1-gb", default="3")
    parser.add_argument("--json", type=Path, help="keep every figure here")
    args = parser.parse_args()
    results: dict[str, list[list[dict[str, Any]]]] = {"ours": [], "public": []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(args.rounds):
            pair = list(servers(Path(folder), args.l1_gb).items())
            for name, server in pair if number % 2 else reversed(pair):  # whoever comes first has no advantage
                server.start(timeout_seconds=120)
                try:
                    results[name].append(measure(server, ["--layout", args.layout, "--chunks", args.chunks]))
                finally:
                    server.stop()
                shown = "  ".join(f"{figure} {warm(results[name][-1], figure):8.2f}" for figure in FIGURES)
                print(f"round {number} {name:7s} {shown}", flush=True)
    size = results["ours"][0][0]["bytes"]
    memcpy = statistics.median(one[0]["memcpy_gb_s"] for rounds in results.values() for one in rounds)
    print(f"\n{size / 2**20:.1f} MiB per request, one memcpy of it {size / memcpy / 1e6:.1f} ms ({memcpy:.1f} GB/s)\n")
    print(f"| {'figure':16} | {'ours':>24} | {'public':>24} | ratio of pairs |\n|---|---|---|---|")
    for figure in FIGURES:
        ours, public = ([warm(one, figure) for one in results[name]] for name in ("ours", "public"))
        ratios = sorted(mine / theirs for mine, theirs in zip(ours, public, strict=True))
        cells = [f"{statistics.median(s):.2f} ({min(s):.2f} to {max(s):.2f})" for s in (ours, public)]
        spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(f"| {figure:16} | {cells[0]:>24} | {cells[1]:>24} | {spread} |")
    if args.json:
        args.json.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
