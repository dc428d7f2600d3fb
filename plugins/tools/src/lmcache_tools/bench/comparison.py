"""Adapters and their media, measured in turns: only pairs that were taken within a moment of each other say anything about a
machine that others use as well."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from lmcache_core.contracts.l1_memory import MemoryRegion
from lmcache_tools.bench.adapter_lane import AdapterLane
from lmcache_tools.bench.interruption import Interruption
from lmcache_tools.bench.lane import Lane, Step, Verb
from lmcache_tools.bench.objects import BenchObjects
from lmcache_tools.bench.plan import LOADS, STORES, Cell, Plan, slot_bytes
from lmcache_tools.bench.traffic import Sample, Traffic
from lmcache_tools.quantities import size_text

_ROUNDS_MIN: Final = 2
"""Of a cell whose time is limited: one alone has no spread."""
_MAX_WRONG: Final = 20

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Subject:
    """An adapter, and what moves the same bytes on the same medium without it."""

    lane: AdapterLane
    medium: Lane | None = None


@dataclass(slots=True)
class Score:
    """What one adapter did in one cell.  Where there is a medium, the samples of both are pairs."""

    cell: Cell
    name: str
    own: list[Sample] = field(default_factory=list)
    medium: list[Sample] = field(default_factory=list)


@dataclass(slots=True)
class Results:
    scores: dict[tuple[Cell, str], Score] = field(default_factory=dict)
    verified: int = 0
    """Objects that came back byte for byte."""
    through_lossy: Counter[str] = field(default_factory=Counter)
    """Objects that came back whole through serdes that change numbers, by adapter and serdes."""
    wrong: list[str] = field(default_factory=list)
    """What did not, by adapter."""
    interrupted: bool = False

    def add(self, cell: Cell, subject: Subject, lane: Lane, sample: Sample) -> None:
        name = subject.lane.name
        score = self.scores.setdefault((cell, name), Score(cell, name))
        (score.own if lane is subject.lane else score.medium).append(sample)


class Comparison:
    """One run over a plan.  One thread."""

    def __init__(
        self,
        plan: Plan,
        subjects: Sequence[Subject],
        region: MemoryRegion,
        interruption: Interruption,
        patience_seconds: float,
        progress: Progress = lambda text: None,
    ) -> None:
        """`progress` gets what is measured next, once for each round."""
        self._plan = plan
        self._subjects = tuple(subjects)
        self._region = region
        self._interruption = interruption
        self._patience_seconds = patience_seconds
        self._progress = progress
        self.results: Final = Results()
        """What is known so far, also after it ended early."""

    def hold(self) -> Results:
        """Raises BenchFailedError when a lane fails.  Everything that was stored is deleted before each new round, and
        is left to `clear` of the lanes after the last."""
        numbers = any(subject.lane.lossy for subject in self._subjects)
        for size, depth in self._plan.grids():
            stride, count = slot_bytes(size), self._plan.objects(size, depth)
            objects = BenchObjects(self._region, size, stride, count, numbers=numbers)
            self._grid(size, depth, objects)
            if self._interruption.asked or self.results.wrong:
                break
        self.results.interrupted = self._interruption.asked
        return self.results

    def _grid(self, size: int, depth: int, objects: BenchObjects) -> None:
        started = time.monotonic()
        for number in range(-self._plan.warmup_rounds, self._plan.rounds):
            seconds = self._plan.seconds
            if seconds is not None and number >= _ROUNDS_MIN and time.monotonic() - started > seconds:
                return
            self._progress(_round_text(size, depth, number))
            self._round(size, depth, number, objects)
            if self._interruption.asked or self.results.wrong:
                return

    def _round(self, size: int, depth: int, number: int, objects: BenchObjects) -> None:
        traffic = Traffic(depth, self._patience_seconds, self._interruption)
        turns = self._turns(number)
        objects.renew()
        for share in sorted({STORES, *self._plan.shares}):
            cell = Cell(size, depth, share)
            steps = self._steps(share, objects)
            for subject, lane in turns:
                taken = steps()
                sample = traffic.run(lane, taken)
                if sample is None:
                    return
                self._verify(lane, objects, taken, subject.lane.lossy if lane is subject.lane else ())
                if self.results.wrong:
                    return
                if number >= 0 and share in self._plan.shares:
                    self.results.add(cell, subject, lane, sample)
        for _, lane in turns:
            lane.clear()

    def _turns(self, number: int) -> list[tuple[Subject, Lane]]:
        """Who comes first changes from round to round, among the adapters and within each pair."""
        turns: list[tuple[Subject, Lane]] = []
        count = len(self._subjects)
        for place in range(count):
            subject = self._subjects[(place + number) % count]
            pair: list[Lane] = [subject.lane, *([subject.medium] if subject.medium else [])]
            turns += [(subject, lane) for lane in (reversed(pair) if number % 2 else pair)]
        return turns

    def _verify(self, lane: Lane, objects: BenchObjects, taken: Sequence[Step], lossy: Sequence[str]) -> None:
        if not self._plan.verify:
            return
        loads = sum(step.verb is Verb.LOAD for step in taken)
        wrong = [f"{lane.name}: {what}" for what in objects.wrong(taken, lossy=bool(lossy))]
        self.results.wrong += wrong[:_MAX_WRONG]
        if lossy:
            self.results.through_lossy[f"{lane.name} ({', '.join(lossy)})"] += loads - len(wrong)
        else:
            self.results.verified += loads - len(wrong)

    @staticmethod
    def _steps(share: int, objects: BenchObjects) -> Callable[[], list[Step]]:
        if share == STORES:
            return objects.stores
        return objects.loads if share == LOADS else objects.mixed(share)


def _round_text(size: int, depth: int, number: int) -> str:
    which = "warming up" if number < 0 else f"round {number + 1}"
    return f"objects of {size_text(size)}, depth {depth}, {which}"
