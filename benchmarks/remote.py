"""L2 adapters of network backends in pairs beside the bare client of the same backend, all on this machine's loopback.

    .venv/bin/python -m benchmarks.remote                            # every backend that can be started here, 10 pairs of each
    .venv/bin/python -m benchmarks.remote --only redis,s3_moto --rounds 3
    .venv/bin/python -m benchmarks.remote --draw benchmarks/results/...-remote.json

A pair is the adapter and the bare client, one right behind the other, with the same objects and as many in flight.  Servers
and clients share the cores: the ratios say what the adapter costs, the speeds nothing about a network.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from benchmarks import machine, report
from benchmarks.l2_cell import CPU, MIB, SPEED, VERBS, Cell
from benchmarks.l2_lane import Runner, opened
from benchmarks.l2_pairs import Pairs, partner_of
from benchmarks.peer import BenchmarkError
from benchmarks.remote_subjects import SUBJECTS, Subject
from benchmarks.results import Results, load, merged
from benchmarks.tables import number
from lmcache_core.app.bench.interruption import Interruption
from lmcache_core.app.bench.objects import BenchObjects
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.model.errors import LMCacheError

PART: Final = "remote"
"""Of docs/benchmarks.md."""
MODE: Final = "loopback"


def measure(args: argparse.Namespace) -> Results:
    results = Results(
        what="remote",
        begun=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        machine=machine.description(),
        limits=machine.limits(),
        subjects={subject.name: subject.describes for subject in SUBJECTS},
    )
    begun = time.monotonic()
    plugins = load_plugins((), ())
    with Interruption() as interruption:
        for subject in SUBJECTS:
            if subject.name not in args.only:
                continue
            try:
                _pairs(subject, args, plugins, interruption, results)
            except (BenchmarkError, LMCacheError, pytest.skip.Exception) as error:
                results.failures.append(f"{subject.name}: {str(error)[:300]}")
                print(f"{subject.name} failed: {error}", file=sys.stderr, flush=True)
            except KeyboardInterrupt:
                results.failures.append("interrupted")
                break
            print(f"{time.monotonic() - begun:6.0f} s  {subject.name}", flush=True)
    results.seconds = round(time.monotonic() - begun)
    return results


def _pairs(
    subject: Subject, args: argparse.Namespace, plugins: LoadedPlugins, interruption: Interruption, results: Results
) -> None:
    size = args.size * MIB
    with tempfile.TemporaryDirectory(prefix="remote-bench-", dir=args.folder) as folder, ExitStack() as undo:
        backend = undo.enter_context(subject.start(Path(folder), size, args.count))
        lane, memory = undo.enter_context(opened(backend.settings, plugins, args.count * size))
        objects = BenchObjects(memory.arena.region, size, size, args.count)
        own, partner = Runner(lane, args.depth, interruption), backend.partner(memory, args.depth, undo)
        pairs = Pairs(subject.name, objects, lambda verb: None, results)
        for round_number in range(-1, args.rounds):  # the first warms up
            pairs.round(MODE, args.size, args.depth, round_number, own, partner)


def page(results: Results) -> str:
    """The part of docs/benchmarks.md."""
    taken = (
        f"Taken on {results.begun[:10]}, commit {results.machine.get('commit', 'unknown')}: {results.machine.get('cores')} "
        f"cores of {results.machine.get('cpu')}, {results.machine.get('memory')}; servers and clients on the same cores."
    )
    lines = [
        taken,
        "",
        "| backend | object, in flight |  | adapter | bare client | ratio of the pairs | aim | CPU of the adapter, s/GB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for subject in SUBJECTS:
        for cell in sorted({Cell.of(figure)[0] for figure in results.samples}):
            lines += [row] if (row := _row(results, subject, cell)) else []
    describes = "\n".join(f"* **{name}**: {says}" for name, says in results.subjects.items())
    return "\n".join((*lines, "", describes))


def _row(results: Results, subject: Subject, cell: Cell) -> str | None:
    other = next(
        (partner for partner in subject.partners if _has(results, cell, partner_of(subject.name, partner))), None
    )
    if other is None or cell.verb not in VERBS:
        return None
    speed, cpu = cell.figure(SPEED), cell.figure(CPU)
    own, bare = results.spread(speed, subject.name), results.spread(speed, partner_of(subject.name, other))
    ratio = results.ratios(speed, subject.name, partner_of(subject.name, other))
    spent = results.spread(cpu, subject.name)
    if own is None or bare is None or ratio is None:
        return None
    cells = (
        subject.name,
        f"{cell.size_mib} MiB, {cell.depth}",
        cell.verb,
        f"{number(own.median, 3)} GB/s",
        f"{number(bare.median, 3)} GB/s",
        f"**{number(ratio.median, 2)}** ({number(ratio.least, 2)} to {number(ratio.most, 2)})",
        f"{subject.aim:.2f}",
        number(spent.median, 2) if spent else "",
    )
    return "| " + " | ".join(cells) + " |"


def _has(results: Results, cell: Cell, subject: str) -> bool:
    return results.spread(cell.figure(SPEED), subject) is not None


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.remote", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ",".join(subject.name for subject in SUBJECTS)
    parser.add_argument("--only", type=lambda given: given.split(","), default=names.split(","), help=f"of {names}")
    parser.add_argument("--size", type=int, default=4, metavar="MIB")
    parser.add_argument("--depth", type=int, default=16)
    parser.add_argument("--count", type=int, default=64, help="objects in a measurement")
    parser.add_argument("--rounds", type=int, default=10, help="pairs of each backend")
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="where servers keep what they keep on a disk")
    parser.add_argument(
        "--draw", type=Path, nargs="+", metavar="FILE", help="measure nothing; write these runs into docs/benchmarks.md"
    )
    return parser.parse_args()


def main() -> None:
    args = _arguments()
    results = merged([load(path) for path in args.draw]) if args.draw else measure(args)
    print(f"\n{page(results)}\n")
    if args.draw:
        report.PAGE.write_text(report.replaced(report.PAGE.read_text(), PART, page(results)))
        print(f"wrote {report.PAGE}")
    else:
        print(f"kept in {results.save()}")
    sys.exit(bool(results.failures))


if __name__ == "__main__":
    main()
