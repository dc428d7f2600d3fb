"""Fuzz one target, guided by coverage, from the kept corpus on.

Usage: .venv/bin/python -m tests.fuzzing TARGET [--seconds N] [--keep FOLDER]

An input that a target fails for is written to FOLDER as `crash-...`.  Add it to the corpus with the fix
(`tests.fuzzing.corpus`).
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import atheris

from tests.fuzzing import corpus

INPUT_BYTES_MAX: Final = 8192
INSTRUMENTED: Final = [
    "lmcache_client", "lmcache_core", "lmcache_kv_layout", "lmcache_p2p", "lmcache_serde", "lmcache_transfer_torch",
    "tests.fuzzing.targets", "tests.fuzzing.peer_targets",
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing", description="Fuzz one target, guided by coverage.")
    parser.add_argument("target")
    parser.add_argument("--seconds", type=int, default=600, help="how long (default 600)")
    parser.add_argument("--keep", type=Path, help="where new inputs and failing ones go (default: nowhere)")
    given = parser.parse_args()
    logging.disable()  # what a target warns of would be most of the output
    with atheris.instrument_imports(include=INSTRUMENTED):
        from tests.fuzzing import targets  # instrumented while it is imported
    if given.target not in targets.TARGETS:
        parser.error(f"no target is called '{given.target}'; there are {', '.join(targets.TARGETS)}")
    with TemporaryDirectory() as scratch:
        keep = given.keep or Path(scratch)
        keep.mkdir(parents=True, exist_ok=True)
        begin = corpus.unpack(given.target, Path(scratch) / "begin")
        for number, seed in enumerate(targets.seeds(given.target)):
            (begin / f"seed-{number}").write_bytes(seed)
        arguments = [
            sys.argv[0], str(keep), str(begin), f"-max_total_time={given.seconds}", f"-max_len={INPUT_BYTES_MAX}",
            f"-artifact_prefix={keep}/", "-timeout=10", "-rss_limit_mb=2048", "-print_final_stats=1",
        ]  # fmt: skip
        atheris.Setup(arguments, targets.TARGETS[given.target])
        atheris.Fuzz()


if __name__ == "__main__":
    main()
