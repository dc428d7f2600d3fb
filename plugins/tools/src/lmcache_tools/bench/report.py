"""What a measurement found, as JSON and as a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any, Final

from lmcache_tools.bench.comparison import Results, Score
from lmcache_tools.bench.figures import Figures, Spread, ratios
from lmcache_tools.bench.lane import BenchFailedError
from lmcache_tools.bench.plan import STORES, Plan
from lmcache_tools.page import Block, Line, Mood, Table
from lmcache_tools.quantities import seconds_text, size_text

_HEAD: Final = ("ADAPTER", "OBJECT", "DEPTH", "WHAT", "GB/S", "MEDIUM, GB/S", "OF MEDIUM", "P50", "P99", "CPU S/GB")
_FROM_MEMORY: Final = 0.5
"""Loads of which storage delivered less say more about memory than about storage."""


@dataclass(frozen=True, slots=True)
class Report:
    """`media` says by adapter what it was compared with, `on_storage` which of them that is a file, `left` how many objects
    could not be deleted."""

    plan: Plan
    results: Results
    media: Mapping[str, str]
    on_storage: Set[str]
    left: Mapping[str, int]
    failure: BenchFailedError | None = None
    """Why it ended early."""

    def record(self) -> dict[str, Any]:
        return {
            "objects_verified": self.results.verified if self.plan.verify else None,
            "objects_through_lossy_serdes": dict(self.results.through_lossy) if self.plan.verify else None,
            "wrong": list(self.results.wrong),
            "failure": None if self.failure is None else str(self.failure),
            "interrupted": self.results.interrupted,
            "left_behind": dict(self.left),
            "media": dict(self.media),
            "cells": [_cell_record(score) for score in self._scores()],
        }

    def page(self) -> Iterator[Block]:
        if rows := [_row(score) for score in self._scores()]:
            yield Table(_HEAD, rows)
            yield Line()
        for name, describes in self.media.items():
            yield Line(f"medium of {name}: {describes}", Mood.QUIET)
        yield from self._remarks()
        yield from self._verdict()

    def _scores(self) -> list[Score]:
        return [score for score in self.results.scores.values() if score.own]

    def _remarks(self) -> Iterator[Line]:
        cached = {
            score.name
            for score in self._scores()
            if score.name in self.on_storage
            and score.cell.loads_percent != STORES
            and (read := Figures.of(score.own).device_read_ratio) is not None
            and read < _FROM_MEMORY * score.cell.loads_percent / 100
        }
        if cached:
            yield Line(
                f"loads came mostly from the page cache, not from storage: {', '.join(sorted(cached))}",
                Mood.QUIET,
            )
        yield Line(
            "GB/s is the median (least to most) over the rounds; CPU is that of all threads of this process; "
            "checking objects is in neither",
            Mood.QUIET,
        )

    def _verdict(self) -> Iterator[Line]:
        for name, count in self.left.items():
            if count:
                yield Line(f"{name}: {count} objects of model 'lmcache-bench' could not be deleted", Mood.BAD)
        for text in self.results.wrong:
            yield Line(text, Mood.BAD)
        if self.plan.verify:
            yield from self._verified(Mood.BAD if self.results.wrong else Mood.GOOD)
        else:
            yield Line("what was loaded was not checked", Mood.DOUBTFUL)
        if self.results.interrupted:
            yield Line("interrupted", Mood.DOUBTFUL)

    def _verified(self, mood: Mood) -> Iterator[Line]:
        if self.results.verified or not self.results.through_lossy:
            yield Line(f"{self.results.verified:,} loaded objects are what was stored, byte for byte", mood)
        for who, count in self.results.through_lossy.items():
            yield Line(
                f"{who}: {count:,} loaded objects are whole and under their own keys; such a serde changes numbers, so they "
                "were not compared",
                mood,
            )


def _row(score: Score) -> tuple[str, ...]:
    own = Figures.of(score.own)
    medium = Figures.of(score.medium) if score.medium else None
    ratio = ratios(score)
    return (
        score.name,
        size_text(score.cell.object_bytes),
        str(score.cell.depth),
        score.cell.what,
        _gb(own.bytes_per_second),
        _gb(medium.bytes_per_second) if medium else "-",
        _share(ratio) if ratio else "-",
        seconds_text(own.latency_p50_seconds),
        seconds_text(own.latency_p99_seconds),
        f"{own.cpu_seconds_per_gb:.2f}",
    )


def _cell_record(score: Score) -> dict[str, Any]:
    ratio = ratios(score)
    return {
        "adapter": score.name,
        "object_bytes": score.cell.object_bytes,
        "depth": score.cell.depth,
        "loads_percent": score.cell.loads_percent,
        "own": Figures.of(score.own).record(),
        "medium": Figures.of(score.medium).record() if score.medium else None,
        "of_medium": ratio._asdict() if ratio else None,
    }


def _gb(spread: Spread) -> str:
    middle, least, most = (f"{value / 1e9:.2f}" for value in spread)
    return middle if least == most else f"{middle} ({least} to {most})"


def _share(spread: Spread) -> str:
    middle, least, most = (f"{100 * value:.0f}" for value in spread)
    return f"{middle} %" if least == most else f"{middle} % ({least} to {most})"
