"""L2 adapters of network backends in pairs beside the bare client of the same backend, all on this machine's loopback.

    .venv/bin/python -m benchmarks.remote                                # every backend that can be started here
    .venv/bin/python -m benchmarks.remote --only s3,redis --rounds 1 --objects 16
    .venv/bin/python -m benchmarks.remote --draw benchmarks/results/...-remote.json [LATER...]

A pair is the adapter and the bare client, one right behind the other, with the same objects from the same warm memory, as
many in flight, in turns who comes first.  Every byte that is loaded is checked: the adapter's while its clock runs, as a
server does it, the bare client's behind it.  Servers and clients share the cores: the ratios say what the adapter costs, the
speeds nothing about a network.  What fails is named in the results, and the others are measured.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from benchmarks import machine, remote_public, report
from benchmarks.l2_cell import MIB
from benchmarks.l2_lane import Runner, opened, settle
from benchmarks.l2_pairs import Pairs
from benchmarks.remote_public import public_turns
from benchmarks.remote_sides import Proven, ServedLane
from benchmarks.remote_subjects import SUBJECTS, Load, Subject
from benchmarks.remote_table import ROWS, page
from benchmarks.results import FOLDER, Results, load, merged
from lmcache_core.app.commands.server import settle as settle_garbage
from lmcache_core.app.commands.server import take_turns
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_tools.bench.interruption import Interruption
from lmcache_tools.bench.objects import BenchObjects

PART: Final = "remote"
"""Of docs/internals/benchmarks.md."""
MODE: Final = "loopback"
NAMES: Final = tuple(row.subject for row in ROWS)
COPIES: Final = 4
"""Of the objects, that are there at a time: in the arena, what both sides have stored, and what a store has to spare."""
BYTES_MAX: Final = 1500 * MIB


class Asked(NamedTuple):
    """What there is to be measured, once."""

    name: str
    load: Load


class Bench:
    """What was asked for, measured one after the other.  The results are kept after each."""

    def __init__(self, args: argparse.Namespace, plugins: LoadedPlugins, interruption: Interruption) -> None:
        self._args = args
        self._plugins = plugins
        self._interruption = interruption
        self.results: Final = Results(
            what="remote",
            started_at=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            machine=machine.description(),
            limits=machine.limits(),
            subjects={row.subject: row.describes for row in ROWS},
        )

    def run(self) -> None:
        start_time = time.monotonic()
        for asked in _asked(self._args):
            what = f"{asked.name}, {asked.load.depth} in flight"
            try:
                pairs = self._pairs(asked)
                print(f"{time.monotonic() - start_time:6.0f} s  {what}: {pairs} pairs", flush=True)
            except KeyboardInterrupt:
                self.results.failures.append(f"{what}: interrupted")
                return
            except (Exception, pytest.skip.Exception) as error:  # noqa: BLE001 - servers and clients of others fail as they like
                self.results.failures.append(f"{what}: {_first_line(error)}")
                print(f"{what} failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            finally:
                self.results.seconds = round(time.monotonic() - start_time)
                self.results.save(self._args.results)

    def _pairs(self, asked: Asked) -> int:
        """At least one, and as many as were asked for where there is the time."""
        with (
            tempfile.TemporaryDirectory(prefix="remote-", dir=self._args.folder) as folder,
            self._turns(asked, Path(folder)) as turn,
        ):
            end = time.monotonic() + self._args.seconds
            for number in range(-1, self._args.rounds):  # the first warms up
                if number > 0 and time.monotonic() > end:
                    return number
                turn(number)
        return int(self._args.rounds)

    @contextmanager
    def _turns(self, asked: Asked, folder: Path) -> Iterator[Callable[[int], None]]:
        """What measures one pair."""
        if asked.name == remote_public.NAME:
            with public_turns(folder, asked.load, self._plugins, self._interruption, self.results) as turn:
                yield turn
        else:
            subject = next(subject for subject in SUBJECTS if subject.name == asked.name)
            with self._turns_of(subject, asked.load, folder) as turn:
                yield turn

    @contextmanager
    def _turns_of(self, subject: Subject, load: Load, folder: Path) -> Iterator[Callable[[int], None]]:
        size = load.object_bytes
        with ExitStack() as undo:
            backend = undo.enter_context(subject.start(folder, load))
            lane, memory = undo.enter_context(opened(backend.settings, self._plugins, load.objects * size))
            objects = BenchObjects(memory.arena.region, size, size, load.objects)
            own = Runner(ServedLane(lane), load.depth, self._interruption)
            partner = Proven(backend.partner(memory, undo), objects)

            def prepare(verb: str) -> None:
                if backend.on_disk:
                    settle(drops_cache=False)

            pairs = Pairs(subject.name, objects, prepare, self.results)
            settle_garbage()  # as a server does before it serves
            yield lambda number: pairs.round(MODE, size // MIB, load.depth, number, own, partner)


def _asked(args: argparse.Namespace) -> list[Asked]:
    depths = {subject.name: subject.depths for subject in SUBJECTS}
    return [
        Asked(name, Load(args.size * MIB, args.objects, depth))
        for name in args.only
        for depth in args.depths or depths.get(name, (16,))
    ]


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{text[0]:.300}" if text else type(error).__name__


def _names(given: str) -> list[str]:
    """`s3` means all of its stores."""
    found: list[str] = []
    for word in (word.strip() for word in given.split(",") if word.strip()):
        meant = [name for name in NAMES if name == word or name.startswith(f"{word}_")]
        if not meant:
            raise argparse.ArgumentTypeError(f"'{word}' is not one of {', '.join(NAMES)}, nor how some of them begin")
        found += [name for name in meant if name not in found]
    return found


def _count(given: str) -> int:
    if not given.isdecimal() or int(given) < 1:
        raise argparse.ArgumentTypeError(f"'{given}' is not a number of at least 1")
    return int(given)


def _arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.remote", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=_names, default=list(NAMES), help=f"of {', '.join(NAMES)}, or s3 for all of its")
    parser.add_argument("--size", type=_count, default=4, metavar="MIB")
    parser.add_argument("--depths", type=lambda text: [_count(each) for each in text.split(",")], help="default: 16")
    parser.add_argument("--objects", type=_count, default=64, help="in a measurement")
    parser.add_argument("--rounds", type=_count, default=10, help="pairs of each backend")
    parser.add_argument("--seconds", type=float, default=75.0, help="when a backend gets no more pairs")
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="where servers keep what they keep on a disk")
    parser.add_argument("--results", type=Path, default=FOLDER, help="where the results are kept")
    parser.add_argument(
        "--draw",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="measure nothing; write these runs into the page",
    )
    args = parser.parse_args(given)
    if (needed := COPIES * args.size * MIB * args.objects) > BYTES_MAX:
        parser.error(
            f"{args.objects} objects of {args.size} MiB need {needed // MIB} MiB of memory or disk with all copies, and "
            f"this takes {BYTES_MAX // MIB} at most: lower --objects or --size"
        )
    if any(depth > args.objects for depth in args.depths or ()):
        parser.error(f"--depths are {args.objects} at most, as many as there are --objects")
    return args


def measured(args: argparse.Namespace) -> Results:
    take_turns()  # as in a server
    with Interruption() as interruption:
        bench = Bench(args, load_plugins((), ()), interruption)
        bench.run()
    return bench.results


def main() -> None:
    args = _arguments()
    results = merged([load(path) for path in args.draw]) if args.draw else measured(args)
    print(f"\n{page(results)}\n")
    if args.draw:
        report.PAGE.write_text(report.replaced(report.PAGE.read_text(), PART, page(results)))
        print(f"wrote {report.PAGE}")
    else:
        print(f"kept in {results.save(args.results)}")
    sys.exit(bool(results.failures))


if __name__ == "__main__":
    main()
