"""L2 adapters in pairs beside fio, a copy in memory, and the public server's benchmark.

    .venv/bin/python -m benchmarks.l2                       # all cells, 10 pairs of each
    .venv/bin/python -m benchmarks.l2 --short               # two depths, 3 pairs, without the public server
    .venv/bin/python -m benchmarks.l2 --only fs --modes direct --sizes 4 --depths 1,16 --rounds 10
    .venv/bin/python -m benchmarks.l2 --draw benchmarks/results/...-l2.json [LATER...]

A pair is the adapter and its partner, one right behind the other, with everything that was written before on the disk: a disk
that others use, too, varies by a factor within minutes, and only the ratios of pairs say anything.  As root the page cache of
the whole machine is dropped before buffered loads are measured beside fio; else both sides load from memory.  Everything
lies in a folder of its own below --folder, which is removed at the end.
"""

from __future__ import annotations

import argparse
import datetime
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks import l2_fio, l2_public, machine, report
from benchmarks.l2_cell import MIB
from benchmarks.l2_fio import Fio
from benchmarks.l2_lane import Runner, may_drop_cache, opened, settle
from benchmarks.l2_memcpy import memcpy
from benchmarks.l2_pairs import Pairs, Side
from benchmarks.l2_subjects import BUFFERED, DIRECT, MEMORY, SUBJECTS, Subject
from benchmarks.l2_table import text, verdicts
from benchmarks.l2_versus_public import Versus
from benchmarks.peer import BenchmarkError
from benchmarks.results import Results, load, merged
from lmcache_client.errors import LMCacheError
from lmcache_core.app.commands.server import take_turns
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_tools.bench.interruption import Interruption
from lmcache_tools.bench.objects import BenchObjects

PART: Final = "l2"
"""Of docs/internals/benchmarks.md."""


class Bench:
    """What was asked for, in one folder."""

    def __init__(
        self,
        args: argparse.Namespace,
        folder: Path,
        shm: Path,
        plugins: LoadedPlugins,
        interruption: Interruption,
    ) -> None:
        self._args = args
        self._folder = folder
        self._shm = shm
        self._plugins = plugins
        self._interruption = interruption
        self._start_time = time.monotonic()
        self.results: Final = Results(
            what="l2",
            started_at=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            machine=machine.description(),
            limits=machine.limits(),
            subjects=_describe(args),
        )

    def run(self, subjects: Sequence[Subject]) -> None:
        """What fails is noted, and the next is measured.  Raises KeyboardInterrupt when it was interrupted."""
        for subject in subjects:
            for mode in (mode for mode in subject.modes if mode in self._args.modes):
                for size in self._args.sizes:
                    with self._noted(f"{subject.name} {mode} {size} MiB"):
                        self._pairs(subject, mode, size)
        if self._args.public_rounds and l2_public.is_installed():
            for number in range(self._args.public_rounds):
                for subject in subjects:
                    if subject.name in l2_public.NAMES:
                        self._versus_public(subject, number)
        self.results.seconds = round(time.monotonic() - self._start_time)

    def _pairs(self, subject: Subject, mode: str, size_mib: int) -> None:
        size, depths = size_mib * MIB, self._args.depths
        counts = {depth: max(2, depth, self._args.pass_mib // size_mib) for depth in depths}
        most = max(counts.values())
        folder = Path(tempfile.mkdtemp(dir=self._shm if mode == MEMORY else self._folder))
        try:
            settings = subject.settings(folder, mode, size, most)
            with ExitStack() as undo:
                lane, memory = undo.enter_context(opened(settings, self._plugins, most * size))
                region = memory.arena.region
                for depth in depths:
                    objects = BenchObjects(region, size, size, counts[depth])
                    own = Runner(lane, depth, self._interruption)
                    partner: Side = (
                        memcpy(size_mib, depth, counts[depth], memory, self._interruption, undo)
                        if mode == MEMORY
                        else self._fio(folder, mode == DIRECT, depth, subject.file_per_object)
                    )
                    pairs = Pairs(subject.name, objects, partial(self._settle, mode), self.results)
                    for number in range(-(depth == depths[0]), self._args.rounds):  # the first warms up
                        pairs.round(mode, size_mib, depth, number, own, partner)
                    self._say(f"{subject.name} {mode} {size_mib} MiB depth {depth}")
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _fio(self, folder: Path, is_direct: bool, depth: int, file_per_object: bool) -> Fio:
        engine = l2_fio.engine_for(self._args.fio_engine, is_direct)
        return Fio(folder, is_direct, depth, engine, file_per_object)

    def _settle(self, mode: str, verb: str) -> None:
        settle(drops_cache=mode == BUFFERED and verb == "load" and self._args.drops_cache)

    def _versus_public(self, subject: Subject, number: int) -> None:
        versus = Versus(subject, self._folder, self._plugins, self._interruption, pass_bytes=self._args.pass_mib * MIB)
        for mode in (mode for mode in subject.modes if mode in self._args.modes):
            for size in self._args.sizes:
                for depth in self._args.public_depths:
                    with self._noted(f"{subject.name} {mode} {size} MiB depth {depth} beside the public server"):
                        versus.alternate(mode, size, depth, number, self.results)
                        self._say(f"public round {number}: {subject.name} {mode} {size} MiB depth {depth}")

    @contextmanager
    def _noted(self, what: str) -> Iterator[None]:
        try:
            yield
        except (BenchmarkError, LMCacheError) as error:
            self.results.failures.append(f"{what}: {str(error)[:300]}")
            print(f"{what} failed: {error}", file=sys.stderr, flush=True)

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._start_time:6.0f} s  {text}", flush=True)


def _describe(args: argparse.Namespace) -> dict[str, str]:
    cache = "dropped before loads through it" if args.drops_cache else "not dropped: loads through it come from memory"
    engines = " and ".join(
        f"{l2_fio.engine_for(args.fio_engine, mode == DIRECT)} ({mode})" for mode in (BUFFERED, DIRECT)
    )
    return {
        "fio": f"{_fio_version()}, engine {engines}; a file per object for adapters of files; their blocks are "
        f"reserved beforehand; page cache {cache}",
        "memcpy": "the threads of lmcache-native that copy from memory to memory",
        "public": "the public LMCache 0.5.6 server's `lmcache bench l2`, one batch at a time, page cache as it is",
    }


def _fio_version() -> str:
    return subprocess.run(["fio", "--version"], capture_output=True, text=True, check=False).stdout.strip() or "fio"


def page(results: Results) -> str:
    """The part of docs/internals/benchmarks.md."""
    taken = (
        f"Taken on {results.started_at[:10]}, commit {results.machine.get('commit', 'unknown')}: "
        f"{results.machine.get('cores')} cores of {results.machine.get('cpu')}, {results.machine.get('memory')}, "
        f"Linux {results.machine.get('kernel')}; "
        f"{results.seconds / 60:.0f} minutes.  Load before it began: {results.machine.get('load')}."
    )
    subjects = "\n".join(f"* **{name}**: {says}" for name, says in results.subjects.items())
    missed = verdicts(results)
    verdict = (
        "Every median reaches its aim." if not missed else "Not reached:\n\n" + "\n".join(f"* {m}" for m in missed)
    )
    how = (
        "A cell is the adapter's median speed in GB/s, and in bold the median of its pairs' ratios (least to most).  CPU is "
        "that of the adapter's process, digests included, over the depths."
    )
    return "\n\n".join((taken, subjects, how, text(results), verdict))


def _numbers(given: str) -> list[int]:
    return [int(part) for part in given.split(",") if part.strip()]


def _words(given: str) -> list[str]:
    return [part.strip() for part in given.split(",") if part.strip()]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.l2", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ",".join(subject.name for subject in SUBJECTS)
    parser.add_argument("--only", type=_words, default=_words(names), help=f"of {names}")
    parser.add_argument("--modes", type=_words, default=[BUFFERED, DIRECT, MEMORY])
    parser.add_argument("--sizes", type=_numbers, default=[4, 32], metavar="MIB")
    parser.add_argument("--depths", type=_numbers, help="default: 1,4,16,32")
    parser.add_argument("--rounds", type=int, help="pairs of each cell (default: 10)")
    parser.add_argument(
        "--pass-mib", type=int, default=256, help="what one measurement moves, at least one of each depth"
    )
    parser.add_argument("--public-rounds", type=int, help="pairs beside the public server; 0: none (default: 2)")
    parser.add_argument("--public-depths", type=_numbers, default=[1, 16])
    parser.add_argument("--fio-engine", choices=l2_fio.ENGINES, default=l2_fio.AUTO)
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="on the disk that is measured")
    parser.add_argument("--keep-cache", action="store_true", help="do not drop the page cache")
    parser.add_argument("--short", action="store_true", help="the same as --depths 1,16 --rounds 3 --public-rounds 0")
    parser.add_argument(
        "--draw",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="measure nothing; write this run into docs/internals/benchmarks.md, with what later ones measured again",
    )
    args = parser.parse_args()
    depths, rounds, public_rounds = ([1, 16], 3, 0) if args.short else ([1, 4, 16, 32], 10, 2)
    args.depths = args.depths or depths
    args.rounds = rounds if args.rounds is None else args.rounds
    args.public_rounds = public_rounds if args.public_rounds is None else args.public_rounds
    args.drops_cache = not args.keep_cache and may_drop_cache()
    return args


def _measure(args: argparse.Namespace) -> Results:
    take_turns()  # as in a server
    plugins = load_plugins((), ())
    installed = {offer.name for offer in plugins.offers(OfferKind.L2_ADAPTER)}
    subjects = [subject for subject in SUBJECTS if subject.name in args.only and subject.name in installed]
    with (
        Interruption() as interruption,
        tempfile.TemporaryDirectory(prefix="l2-bench-", dir=args.folder) as folder,
        tempfile.TemporaryDirectory(prefix="l2-bench-", dir="/dev/shm") as memory,
    ):
        bench = Bench(args, Path(folder), Path(memory), plugins, interruption)
        try:
            bench.run(subjects)
        except KeyboardInterrupt:
            bench.results.failures.append("interrupted")
    return bench.results


def main() -> None:
    args = _arguments()
    if args.draw is None and not l2_fio.is_installed():
        sys.exit("fio is missing: apt-get install fio")
    results = merged([load(path) for path in args.draw]) if args.draw else _measure(args)
    print(f"\n{page(results)}\n")
    if args.draw:
        report.PAGE.write_text(report.replaced(report.PAGE.read_text(), PART, page(results)))
        print(f"wrote {report.PAGE}")
    else:
        print(f"kept in {results.save()}")
    sys.exit(bool(results.failures))


if __name__ == "__main__":
    main()
