"""Two sides that move the same bytes in turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from benchmarks.l2_cell import Cell, Speed
from benchmarks.peer import BenchmarkError
from benchmarks.results import Results
from lmcache_tools.bench.lane import Step
from lmcache_tools.bench.objects import BenchObjects


class Side(Protocol):
    """Moves bytes."""

    @property
    def name(self) -> str: ...

    def run(self, steps: Sequence[Step]) -> Speed: ...

    def clear(self) -> None:
        """Remove what was stored."""


def partner_of(adapter: str, partner: str) -> str:
    """The subject of what was measured beside this adapter."""
    return f"{partner} beside {adapter}"


class Pairs:
    """Measures an adapter and its partner, one right behind the other.  Every loaded object is checked."""

    def __init__(self, adapter: str, objects: BenchObjects, settle: Callable[[str], None], results: Results) -> None:
        """`settle` is called with the verb before each measurement."""
        self._adapter = adapter
        self._objects = objects
        self._settle = settle
        self._results = results

    def round(self, mode: str, size_mib: int, depth: int, number: int, own: Side, partner: Side) -> None:
        """One pair of stores and one of loads; a negative number is not kept.  Raises BenchmarkError when a side fails."""
        self._objects.renew()
        sides = [(self._adapter, own), (partner_of(self._adapter, partner.name), partner)]
        for verb, steps in (("store", self._objects.stores), ("load", self._objects.loads)):
            cell = Cell(mode, size_mib, depth, verb)
            for subject, side in reversed(sides) if number % 2 else sides:
                taken = steps()
                self._settle(verb)
                speed = side.run(taken)
                if number >= 0:
                    self._results.add(subject, number, speed.figures(cell))
                if side is own:
                    self._check(taken)
        for _, side in sides:
            side.clear()

    def _check(self, taken: Sequence[Step]) -> None:
        if wrong := list(self._objects.wrong(taken)):
            raise BenchmarkError(f"{self._adapter}: {len(wrong)} objects came back wrong, the first: {wrong[0]}")
