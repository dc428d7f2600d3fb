"""What a run measured, as it is kept in benchmarks/results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import msgspec

FOLDER: Final = Path(__file__).resolve().parent / "results"


class Spread(NamedTuple):
    """The rounds of one figure."""

    median: float
    least: float
    most: float


class Results(msgspec.Struct, kw_only=True):
    """`samples[figure][subject][round]` is one round's value; rounds that failed are missing."""

    what: str
    started_at: str
    seconds: float = 0.0
    machine: dict[str, str] = {}
    limits: dict[str, float] = {}
    subjects: dict[str, str] = {}
    failures: list[str] = []
    samples: dict[str, dict[str, dict[str, float]]] = {}

    def add(self, subject: str, round_number: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self.samples.setdefault(name, {}).setdefault(subject, {})[str(round_number)] = value

    def spread(self, figure: str, subject: str) -> Spread | None:
        """None where nothing was measured."""
        values = self.samples.get(figure, {}).get(subject, {}).values()
        return Spread(median(values), min(values), max(values)) if values else None

    def ratios(self, figure: str, subject: str, other: str) -> Spread | None:
        """`subject` divided by `other` in each round that has both."""
        ours, theirs = (self.samples.get(figure, {}).get(name, {}) for name in (subject, other))
        ratios = [ours[number] / theirs[number] for number in ours if theirs.get(number)]
        return Spread(median(ratios), min(ratios), max(ratios)) if ratios else None

    def save(self, folder: Path = FOLDER) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        stamp = self.started_at.replace(":", "").replace("-", "")
        path = folder / f"{stamp}-{self.what}.json"
        rounded = {
            figure: {
                subject: {number: float(f"{value:.5g}") for number, value in rounds.items()}
                for subject, rounds in by.items()
            }
            for figure, by in self.samples.items()
        }
        shown = msgspec.to_builtins(msgspec.structs.replace(self, samples=rounded))
        path.write_text(json.dumps(shown, indent=1) + "\n")
        return path


def load(path: Path) -> Results:
    """Raises ValueError when the file is not what `save` writes."""
    return msgspec.json.decode(path.read_bytes(), type=Results)


def merged(runs: Sequence[Results]) -> Results:
    """The first of these runs, with what later ones measured again in the place of what they replace."""
    first = runs[0]
    samples = {figure: dict(by) for figure, by in first.samples.items()}
    for later in runs[1:]:
        for figure, by in later.samples.items():
            samples.setdefault(figure, {}).update(by)
    return msgspec.structs.replace(
        first,
        samples=samples,
        seconds=sum(run.seconds for run in runs),
        failures=[failure for run in runs for failure in run.failures],
    )


def newest(what: str, folder: Path = FOLDER) -> Path | None:
    """The last run of this kind that was kept."""
    return max(folder.glob(f"*-{what}.json"), default=None)
