"""Store and retrieve between an engine's pages and L1, in all the ways there are: this server and the public one, in turns.

    .venv/bin/python -m benchmarks.transfer [--rounds 3] [--layout 8b|small] [--chunks 4] [--head-major] [--only WAYS]

Each way has a server and a client of its own, started afresh in each round.  Prints medians over all warm passes, with the
spread of the rounds' medians; and how a memmove of as many bytes, made in the same client after each store, compares to them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.peer import BenchmarkError
from benchmarks.process import Process
from demo.environment import quiet_environment
from demo.server_process import LMCACHE, ServerProcess

ROOT = Path(__file__).resolve().parent.parent
ENGINE_PYTHON = ROOT / ".venv-engine/bin/python"
PUBLIC_SERVER = ROOT / "benchmarks/public_lmcache.sh"
FIGURES = ("store_ms", "retrieve_ms", "store_cpu_ms", "retrieve_cpu_ms")


@dataclass(frozen=True, slots=True)
class Way:
    """Whose server, how it is started, and which client moves bytes with it."""

    public: bool = False
    options: tuple[str, ...] = ()
    client: str = "stock_client"
    client_options: tuple[str, ...] = ()


_DRIVEN: Final = ("--transfer-mode", "lmcache_driven")
WAYS: Final[Mapping[str, Way]] = {
    "engine-driven": Way(),
    # The stock benchmark client keeps tokens in block 0, which means none to servers and engines.
    "server-driven": Way(options=("--null-block-id", str(2**31 - 1)), client_options=_DRIVEN),
    "own": Way(client="own_client"),
    "public": Way(public=True, options=("--shm-name", f"bench-{os.getpid()}")),
    "public-default": Way(public=True),
    "public-driven": Way(public=True, client_options=_DRIVEN),
}
"""By the name that `--only` takes."""


def public_is_installed() -> bool:
    return any(ENGINE_PYTHON.parent.parent.glob("lib/python3*/site-packages/lmcache/cli/main.py"))


def measure(server: Process, options: Sequence[str], client: str = "stock_client") -> list[dict[str, Any]]:
    """The passes of one freshly started client against one running server."""
    command = [
        str(ENGINE_PYTHON),
        *("-m", f"benchmarks.{client}"),
        *("--port", str(server.port), "--http-port", str(server.http_port), "--server-pid", str(server.pid)),
        *options,
    ]
    environment = {**quiet_environment(), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise BenchmarkError(f"the client failed:\n{done.stderr[-3000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def server(way: Way, log: Path, l1_gb: str) -> ServerProcess:
    if not way.public:
        return ServerProcess(["--l1-size-gb", l1_gb, *way.options], log, executable=LMCACHE)
    public = (
        f"--l1-size-gb {l1_gb} --no-l1-use-lazy --eviction-policy LRU --chunk-size 256 --supported-transfer-mode auto"
    )
    return ServerProcess([*public.split(), *way.options], log, executable=PUBLIC_SERVER)


def warm(passes: Sequence[dict[str, Any]], figure: str) -> float:
    """Median over the passes after the first, which touches memory for the first time."""
    return float(statistics.median(value for one in passes if one["pass"] for value in one[figure]))


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layout", default="8b")
    parser.add_argument("--chunks", default="4")
    parser.add_argument("--head-major", action="store_true", help="pages with heads before tokens")
    parser.add_argument("--only", default=",".join(WAYS), help=f"of {', '.join(WAYS)}")
    parser.add_argument("--l1-gb", default="3")
    parser.add_argument("--json", type=Path, help="keep every figure here")
    args = parser.parse_args()
    names = [name for name in args.only.split(",") if not WAYS[name].public or public_is_installed()]
    options = ["--layout", args.layout, "--chunks", args.chunks, *(["--head-major"] if args.head_major else [])]
    results: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(args.rounds):
            turn = number % len(names)  # the first one has no advantage
            for name in [*names[turn:], *names[:turn]]:
                way = WAYS[name]
                started = server(way, Path(folder) / f"{name}.log", args.l1_gb)
                started.start(timeout_seconds=120)
                try:
                    results[name].append(measure(started, [*options, *way.client_options], way.client))
                finally:
                    started.stop()
                shown = "  ".join(f"{figure} {warm(results[name][-1], figure):8.2f}" for figure in FIGURES)
                print(f"round {number} {name:14} {shown}", flush=True)
    size = results[names[0]][0][0]["bytes"]
    print(f"\n{size / 2**20:.1f} MiB per request; memmove / time: 1 is the speed of memory\n")
    print(f"| way | memmove | {' | '.join(FIGURES)} | memmove / store | memmove / retrieve |")
    print("|---" * (4 + len(FIGURES)) + "|")
    for name, rounds in results.items():
        of = {figure: [warm(one, figure) for one in rounds] for figure in ("memmove_ms", *FIGURES)}
        cells = [spread(values) for values in of.values()]
        cells += [
            spread([copy / once for copy, once in zip(of["memmove_ms"], of[figure], strict=True)])
            for figure in ("store_ms", "retrieve_ms")
        ]
        print(f"| {name} | {' | '.join(cells)} |")
    if args.json:
        args.json.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
