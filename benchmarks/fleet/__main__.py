"""What a directory of a fleet costs: this project's, the three designs of the seed's table, and LMCache 0.5.6's two.

    .venv/bin/python -m benchmarks.fleet [--rounds 3] [--placements 100000000] [--small 10000000] [--no-save]

100 instances have the same number of chunks each.  Ours has `--placements` in all, the others as many as `--small` says, and
KeyDirectory a tenth of it, because an entry of theirs takes up to 1,000 bytes.  What is shown for a million chunks per instance
is scaled by the number of keys then, and marked with ~.  Each subject runs in a process of its own, in turns.  Figures are
medians over the rounds, in CPU time."""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks import machine
from benchmarks.results import Results
from benchmarks.tables import number
from benchmarks.transfer import ENGINE_PYTHON, ROOT, public_is_installed
from demo.environment import quiet_environment

INSTANCES: Final = 100
SECONDS: Final = 900
SOURCES: Final = ROOT / "libs/native/src/cpp/fleet"
COMMON_SUFFIX: Final = ", half common"


class Subject(NamedTuple):
    name: str
    describes: str
    share: float | None
    """Of `--small`; None: it has `--placements`."""
    public: bool = False


SUBJECTS: Final = (
    Subject("native", "this project's directory, compiled", None),
    Subject("S0", "a dict from chunk to (instance, worker, location)", 1),
    Subject("S1", "a tree of instances, workers and locations with a set of chunks each", 1),
    Subject("S2", "S1, and a dict from chunk to place beside it", 1),
    Subject("KeyDirectory", "of LMCache 0.5.6's coordinator", 0.1, public=True),
    Subject("RegistryTree", "of LMCache 0.5.6's older controller", 1, public=True),
)

ROWS: Final = (
    ("bytes_per_placement", "bytes per placement", 1),
    ("gigabytes", "GB for 100 instances of a million chunks", 2),
    ("report_ms", "full report of a million chunks, ms", 0),
    ("report_worst_ms", "the worst of them, ms", 0),
    ("deregister_ms", "an instance leaves, ms", 4),
    ("same_ns", "look up one key, the same again, ns", 0),
    ("random_ns", "look up one random key, ns", 0),
    ("batch_ns", "512 random keys at once, ns per key", 0),
    ("prefix_us", "prefix of 512 chunks over 100 instances, us", 0),
    ("sweep_worst_ms", "longest step of the sweep, ms", 2),
    ("bare_same_ns", "without Python: the same key again, ns", 0),
    ("bare_random_ns", "without Python: a random key, ns", 0),
    ("read_ns", "one read of 64 random bytes of as much memory, ns", 0),
)


def chunks_of(subject: Subject, placements: int, small: int) -> int:
    """Per instance."""
    return int(placements if subject.share is None else small * subject.share) // INSTANCES


def measured(subject: Subject, chunks: int, common: int) -> dict[str, float]:
    python = str(ENGINE_PYTHON) if subject.public else sys.executable
    words = [python, "-m", "benchmarks.fleet.measure", subject.name, *map(str, (INSTANCES, chunks, common))]
    figures: dict[str, float] = json.loads(_last_line(words))
    # At a million chunks per instance.  What is done per instance grows with its chunks, but where it takes no time.
    figures["gigabytes"] = figures["bytes_per_placement"] * INSTANCES / 1e3
    if subject.name != "native":
        figures["deregister_ms"] *= 1e6 / chunks
    return figures


def bare(chunks: int) -> dict[str, float]:
    """Nothing where there is no compiler."""
    compiler = shutil.which("g++")
    if compiler is None:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "bare"
        sources = [Path(__file__).parent / "bare.cpp", SOURCES / "directory.cpp", SOURCES / "directory_part.cpp"]
        options = ["-O3", "-std=c++20", f"-I{SOURCES}", "-o", str(program), "-pthread"]
        subprocess.run([compiler, *options, *map(str, sources)], check=True, timeout=SECONDS)
        figures: dict[str, float] = json.loads(_last_line([str(program), str(INSTANCES), str(chunks)]))
        return figures


def table(results: Results) -> str:
    names = [name for name in results.subjects if any(name in by for by in results.samples.values())]
    lines = ["| figure | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for figure, label, digits in ROWS:
        cells = []
        for name in names:
            spread = results.spread(figure, name)
            scaled = (min(results.samples["placements"][name].values()) < INSTANCES * 1e6) if spread else False
            mark = "~" if scaled and figure in ("gigabytes", "report_ms", "report_worst_ms", "deregister_ms") else ""
            shown = digits if spread and spread.median < 10 else 0
            cells.append("" if spread is None else mark + number(spread.median, max(shown, min(digits, 1))))
        if any(cells):
            lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def run(rounds: int, placements: int, small: int) -> Results:
    date, start = datetime.datetime.now(datetime.UTC), time.monotonic()
    results = Results(what="fleet", started_at=date.strftime("%Y-%m-%dT%H:%M:%SZ"), machine=machine.description())
    subjects = [subject for subject in SUBJECTS if not subject.public or public_is_installed()]
    if len(subjects) < len(SUBJECTS):
        results.failures.append("LMCache 0.5.6 is not installed in .venv-engine: left out")
    for turn in range(rounds):
        for subject in subjects[turn:] + subjects[:turn]:
            chunks = chunks_of(subject, placements, small)
            for common in (0, chunks // 2) if subject.share is None else (0,):
                name = subject.name + (COMMON_SUFFIX if common else "")
                results.subjects[name] = f"{subject.describes}; {INSTANCES} x {chunks:,} chunks"
                try:
                    figures = measured(subject, chunks, common)
                    if subject.share is None and not common:
                        figures |= bare(chunks)
                except (subprocess.SubprocessError, ValueError) as error:
                    results.failures.append(f"{name}, round {turn}: {error}")
                    continue
                results.add(name, turn, figures)
                print(
                    f"{name}: " + ", ".join(f"{figure} {value:,.4g}" for figure, value in figures.items()), flush=True
                )
    results.seconds = time.monotonic() - start
    return results


def _last_line(words: list[str]) -> str:
    done = subprocess.run(
        words, env=quiet_environment(), cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise ValueError(f"{' '.join(words)} ended with {done.returncode}: {done.stderr[-500:]}")
    return lines[-1]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fleet", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--placements", type=int, default=100_000_000, help="of ours")
    parser.add_argument("--small", type=int, default=10_000_000, help="of the others")
    parser.add_argument("--no-save", action="store_true", help="keep no file in benchmarks/results")
    args = parser.parse_args()
    results = run(args.rounds, args.placements, args.small)
    print(f"\n{table(results)}")
    for failure in results.failures:
        print(failure, file=sys.stderr)
    if not args.no_save:
        print(f"\nkept in {results.save()}")


if __name__ == "__main__":
    main()
