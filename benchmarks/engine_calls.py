"""The in-process cache beside the public package's: the same calls, the same pages and the same page copier, in turns.

.venv/bin/python -m benchmarks.engine_calls [--rounds 7]

Writes a table: medians over the rounds, and ratios of pairs within a round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys

from benchmarks.transfer import ENGINE_PYTHON, ROOT
from demo.environment import quiet_environment

SIDES = {"own": sys.executable, "public": str(ENGINE_PYTHON)}
SECONDS = 300
ROWS = {
    "lookup": "lookup of 8,192 tokens that were looked up before",
    "lookup, half new": "lookup of 8,192 tokens, half of them new",
    "store": "store of 2,048 tokens (64 MiB) into full memory",
    "retrieve": "retrieve of 8,192 tokens (256 MiB)",
}


def side(name: str) -> dict[str, float]:
    """Milliseconds of each call, in a process of its own."""
    environment = quiet_environment() | {
        "LMCACHE_TRACK_USAGE": "false",
        "PYTHONHASHSEED": "0",
        "LMCACHE_LOG_LEVEL": "ERROR",
    }
    done = subprocess.run(
        [SIDES[name], str(ROOT / "benchmarks/engine_side.py"), name],
        env=environment, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise SystemExit(f"{name}: failed:\n{done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(lines[-1])
    return found


def table(rounds: list[dict[str, dict[str, float]]]) -> str:
    lines = ["| | ours | public | public / ours |", "|---|---:|---:|---:|"]
    for name, text in ROWS.items():
        ours, theirs = ([each[which][name] for each in rounds] for which in SIDES)
        ratios = sorted(b / a for a, b in zip(ours, theirs, strict=True))
        middle = f"**{statistics.median(ratios):.2f}** ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        lines.append(f"| {text} | {statistics.median(ours):.2f} ms | {statistics.median(theirs):.2f} ms | {middle} |")
    for which, words in (("own", "ours"), ("public", "public")):
        ratios = sorted(each[which]["memmove"] / each[which]["retrieve"] for each in rounds)
        lines.append(f"| memmove of as many bytes / retrieve, {words} | | | {statistics.median(ratios):.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds: list[dict[str, dict[str, float]]] = []
    for number in range(parser.parse_args().rounds):
        names = list(SIDES) if number % 2 == 0 else list(SIDES)[::-1]
        rounds.append({name: side(name) for name in names})
        print(json.dumps(rounds[-1]), file=sys.stderr)
    print(table(rounds))


if __name__ == "__main__":
    main()
