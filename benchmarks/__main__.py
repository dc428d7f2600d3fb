"""Everything that is measured against the public server, in one run.

    make bench                                              # all rows, 3 rounds; writes docs/internals/benchmarks.md and plots
    .venv/bin/python -m benchmarks --only lookup,grown --rounds 5 --subjects echo,pure,public

The subjects take turns: each round starts every server afresh, in another order.  Figures are medians over the rounds,
and ratios are of pairs within a round.
"""

from __future__ import annotations

import argparse
import datetime
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from benchmarks import catalogue, machine, report, transfer
from benchmarks.peer import BenchmarkError, Peer
from benchmarks.results import Results, load
from benchmarks.rows.site import Figures, Site
from benchmarks.subjects import Subject, available
from benchmarks.tables import summary
from benchmarks.transfer import ENGINE_PYTHON, ROOT
from demo.child_process import ChildError
from demo.environment import quiet_environment

START_SECONDS = 120
INDEX_SECONDS = 240
L1_GB = 1.0
TRANSFER_L1_GB = 3.0
ALL = "all"


def rows(subject: Subject, names: Sequence[str], scale: float) -> Figures:
    """The rows that talk to a server over a bare socket, all to one server."""
    figures: Figures = {}
    with tempfile.TemporaryDirectory() as folder:
        server = subject.make(Path(folder), L1_GB)
        server.start(timeout_seconds=START_SECONDS)
        try:
            with Peer(server.port, checks=not subject.is_echo) as peer:
                peer.register()
                site = Site(peer, server.port, server.pid, not subject.is_echo, scale)
                for name in names:
                    figures |= catalogue.ROWS[name](site)
        finally:
            server.stop()
    return figures


def index(subject: Subject, keys: int) -> Figures:
    """L1 alone, in a process of its own; nothing for the echo."""
    if subject.is_echo:
        return {}
    if subject.is_ours:
        command = [
            sys.executable,
            "-m",
            "benchmarks.l1_index",
            "--keys",
            str(keys),
            "--native",
            subject.native or "off",
        ]
    else:
        command = [str(ENGINE_PYTHON), str(ROOT / "benchmarks/public_index.py"), "--keys", str(keys)]
    done = subprocess.run(
        command, env=quiet_environment(), cwd=ROOT, capture_output=True, text=True, timeout=INDEX_SECONDS, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise BenchmarkError(f"{subject.name}: the index failed:\n{done.stderr[-2000:]}")
    return msgspec.json.decode(lines[-1], type=Figures)


def stock_transfer(subject: Subject) -> Figures:
    """128 MiB through the stock client; nothing for the echo, and nothing without that client."""
    if subject.is_echo or not ENGINE_PYTHON.exists():
        return {}
    with tempfile.TemporaryDirectory() as folder:
        server = subject.make(Path(folder), TRANSFER_L1_GB)
        server.start(timeout_seconds=START_SECONDS)
        try:
            passes = transfer.measure(server, ["--layout", "8b", "--chunks", "4"])
        finally:
            server.stop()
    return {f"transfer_{figure}": transfer.warm(passes, figure) for figure in transfer.FIGURES}


def stages(names: Sequence[str], scale: float, keys: int) -> list[Callable[[Subject], Figures]]:
    """What is done with each subject in each round, as far as it was asked for."""
    socket_rows = [name for name in catalogue.ROWS if name in names]
    found: list[Callable[[Subject], Figures]] = []
    if socket_rows:
        found.append(lambda subject: rows(subject, socket_rows, scale))
    if catalogue.INDEX in names:
        found.append(lambda subject: index(subject, keys))
    if catalogue.TRANSFER in names:
        found.append(stock_transfer)
    return found


def run(args: argparse.Namespace, subjects: Sequence[Subject]) -> Results:
    start_time = time.monotonic()
    results = Results(
        what=ALL if set(args.only) == set(catalogue.ROW_NAMES) else "-".join(args.only),
        started_at=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        machine=machine.description(),
        limits=machine.limits(),
        subjects={subject.name: subject.describes for subject in subjects},
    )
    for number in range(args.rounds):
        turn = number % len(subjects)
        for subject in [*subjects[turn:], *subjects[:turn]]:
            for stage in stages(args.only, args.scale, args.keys):
                try:
                    results.add(subject.name, number, stage(subject))
                except (BenchmarkError, ChildError, subprocess.TimeoutExpired) as error:
                    results.failures.append(f"round {number}, {subject.name}: {str(error)[:300]}")
                    print(f"round {number} {subject.name} failed: {error}", file=sys.stderr, flush=True)
            print(f"{time.monotonic() - start_time:6.0f} s  round {number}  {subject.name}", flush=True)
    results.seconds = round(time.monotonic() - start_time)
    return results


def _names(known: Sequence[str]) -> Callable[[str], list[str]]:
    def names(text: str) -> list[str]:
        given = [name for part in text.split(",") if (name := part.strip())]
        if unknown := [name for name in given if name not in known]:
            raise argparse.ArgumentTypeError(f"there is no '{unknown[0]}'; there are {', '.join(known)}")
        return given

    return names


def main() -> None:
    subjects = available()
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    row_names, subject_names = list(catalogue.ROW_NAMES), [subject.name for subject in subjects]
    parser.add_argument("--only", type=_names(row_names), default=row_names, help=f"of {','.join(row_names)}")
    parser.add_argument("--subjects", type=_names(subject_names), default=subject_names, help=",".join(subject_names))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the usual operations per measurement")
    parser.add_argument("--keys", type=int, default=1_000_000, help="objects of the l1 row")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what runs is stopped on the way out
    results = run(args, [subject for subject in subjects if subject.name in args.subjects])
    kept = results.save()
    print(f"\n{summary(results, catalogue.TABLES)}\n\nkept in {kept}")
    if results.what == ALL and not results.failures:
        for path in report.write(load(kept)):  # as it was kept, which is rounded
            print(f"wrote {path}")
    sys.exit(bool(results.failures))


if __name__ == "__main__":
    main()
