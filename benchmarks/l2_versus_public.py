"""Our adapters and the public server's of the same names, by the loop that its benchmark has."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks import l2_public
from benchmarks.l2_cell import MIB, Cell, Speed
from benchmarks.l2_lane import Runner, opened, settle
from benchmarks.l2_pairs import partner_of
from benchmarks.l2_subjects import Settings, Subject
from benchmarks.peer import BenchmarkError
from benchmarks.results import Results
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_tools.bench.interruption import Interruption
from lmcache_tools.bench.lane import Step
from lmcache_tools.bench.objects import BenchObjects

PUBLIC: Final = "public"
_ROUNDS_MIN, _ROUNDS_MAX = 2, 16


def in_batches(name: str) -> str:
    """What our adapter is called in this comparison."""
    return f"{name} in batches"


@dataclass(frozen=True, slots=True)
class Versus:
    """Batches of `depth` objects, each waited for: all are stored, and then all loaded, as its benchmark does.  No page cache
    is dropped, because that cannot: what goes through it is loaded from memory on both sides."""

    subject: Subject
    folder: Path
    plugins: LoadedPlugins
    interruption: Interruption
    pass_bytes: int

    def alternate(self, mode: str, size_mib: int, depth: int, number: int, results: Results) -> None:
        """One run of each, in turns.  Raises BenchmarkError or LMCacheError when one fails."""
        batch_bytes = depth * size_mib * MIB
        rounds = min(_ROUNDS_MAX, max(_ROUNDS_MIN, self.pass_bytes // batch_bytes))
        batches = 1 + rounds
        here, there = self.folder / "own", self.folder / "public"

        def own() -> None:
            here.mkdir()
            speeds = self._own(
                self.subject.settings(here, mode, size_mib * MIB, batches * depth), size_mib, depth, rounds
            )
            self._keep(in_batches(self.subject.name), mode, size_mib, depth, number, speeds, results)

        def public() -> None:
            there.mkdir()
            speeds = l2_public.run(self.subject.settings(there, mode, size_mib * MIB, depth), size_mib, depth, rounds)
            name = partner_of(self.subject.name, PUBLIC)
            self._keep(name, mode, size_mib, depth, number, speeds, results)

        for side in (public, own) if number % 2 else (own, public):
            try:
                settle(drops_cache=False)
                side()
            finally:
                for folder in (here, there):
                    shutil.rmtree(folder, ignore_errors=True)

    def _own(self, settings: Settings, size_mib: int, depth: int, rounds: int) -> dict[str, Speed]:
        size, batches = size_mib * MIB, 1 + rounds  # the first warms up
        seconds = {}
        with opened(settings, self.plugins, batches * depth * size) as (lane, memory):
            objects = BenchObjects(memory.arena.region, size, size, batches * depth)
            runner = Runner(lane, depth, self.interruption)
            objects.renew()
            for verb, made in (("store", objects.stores), ("load", objects.loads)):
                steps = made()
                taken = [runner.run(steps[at : at + depth]) for at in range(0, batches * depth, depth)]
                self._check(objects, steps)
                seconds[verb] = sum(depth * size / 1e9 / speed.gb_per_second for speed in taken[1:])
        return {verb: Speed(rounds * depth * size / 1e9 / spent) for verb, spent in seconds.items()}

    def _check(self, objects: BenchObjects, taken: Sequence[Step]) -> None:
        if wrong := list(objects.wrong(taken)):
            raise BenchmarkError(f"{self.subject.name}: an object came back wrong: {wrong[0]}")

    @staticmethod
    def _keep(
        name: str, mode: str, size_mib: int, depth: int, number: int, speeds: dict[str, Speed], results: Results
    ) -> None:
        for verb, speed in speeds.items():
            results.add(name, number, speed.figures(Cell(mode, size_mib, depth, verb)))
