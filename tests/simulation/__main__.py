"""Runs seeds of the simulation, and prints what went wrong with the command that shows it again."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
import time
from typing import Final

from tests.simulation.fixes import FIXES
from tests.simulation.simulation import Simulation, import_everything

PAIRS_STEPS: Final = 200_000
"""After this many steps of all seeds engines of two workers have read chunks."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1, help="how many, from --seed on")
    parser.add_argument("--steps", type=int, default=20_000, help="of each seed")
    parser.add_argument("--without", choices=sorted(FIXES), help="take a fix out, to see that it is missed")
    parser.add_argument("--log", default="CRITICAL", help="level of the server's log lines")
    asked = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # or sets would be in another order each time
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.simulation", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    logging.basicConfig(level=asked.log)
    import_everything()
    if asked.without:
        FIXES[asked.without]()
    gc.disable()
    failed, read_by_pairs = 0, 0.0
    for seed in range(asked.seed, asked.seed + asked.seeds):
        started = time.monotonic()
        result = Simulation(seed).run(asked.steps)
        figures = " ".join(f"{name}={value:.0f}" for name, value in result.figures.items())
        print(
            f"seed={seed} steps={result.steps} trace={result.trace} wall={time.monotonic() - started:.1f}s {figures}",
            flush=True,
        )
        read_by_pairs += result.figures.get("read_by_pair", 0)
        if result.violation:
            failed += 1
            print(f"  {result.violation}")
            without = f" --without {asked.without}" if asked.without else ""
            print(f"  again: python -m tests.simulation --seed {seed} --steps {asked.steps}{without}", flush=True)
    if asked.seeds * asked.steps >= PAIRS_STEPS and not read_by_pairs:
        failed += 1
        print("  pair engines have read nothing")
    print(f"seeds={asked.seeds} steps={asked.seeds * asked.steps} failed={failed}")
    sys.stdout.flush()
    os._exit(bool(failed))  # threads of the simulation have no orderly end


main()
