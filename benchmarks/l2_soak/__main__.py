"""Two tiers at full load, by a recipe that people know, with sizes of this machine.

    .venv/bin/python -m benchmarks.l2_soak --minutes 10 --recipe combined|buffer_only [--adapter fs_native] [--engines 4]

Engines ask for half as much again as L2 can hold, compare every byte of what they are given, and store what is missing; both
tiers are looked at ten times a second.  Takes 2 GiB of disk and half a GiB of memory.

Ends with status 1 when a tier was above its capacity, bytes were wrong, something failed, or something was left behind.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from benchmarks.l2_soak.recipes import FULL, RECIPES
from benchmarks.l2_soak.report import text
from benchmarks.l2_soak.run import soak


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.l2_soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--recipe", choices=RECIPES, action="append", help="repeatable (default: all)")
    parser.add_argument("--adapter", default="fs_native", help="one that has `base_path` (default: fs_native)")
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--folder", type=Path, help="on the disk to use (default: that of temporary files)")
    parser.add_argument("--no-save", action="store_true", help="keep no file in benchmarks/results")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what runs is stopped on the way out
    failed = False
    for recipe in args.recipe or RECIPES:
        with tempfile.TemporaryDirectory(dir=args.folder, prefix="lmcache-l2-soak-") as folder:
            done = soak(recipe, args.adapter, args.minutes * 60, args.engines, FULL, Path(folder))
        print(text(done), flush=True)
        if not args.no_save:
            print(f"\nkept in {done.save()}")
        failed |= bool(done.complaints)
    sys.exit(failed)


if __name__ == "__main__":
    main()
