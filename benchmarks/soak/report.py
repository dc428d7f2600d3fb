"""A soak in words and as a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import matplotlib.pyplot as plt
import msgspec
from matplotlib.figure import Figure

from benchmarks import plots
from benchmarks.soak.samples import Sample, Soak
from benchmarks.soak.trend import Trend

MB: Final = 1e6
PICTURE: Final = "benchmarks-soak"
PANELS: Final[Sequence[tuple[str, Callable[[Sample], float]]]] = (
    ("anonymous memory, MB", lambda sample: sample.anonymous_bytes / MB),
    ("file descriptors", lambda sample: sample.descriptors),
    ("leases", lambda sample: sample.leases),
    ("objects cached in L1", lambda sample: sample.cached),
)


def load(path: Path) -> Soak:
    """Raises ValueError when the file is not what `Soak.save` writes."""
    return msgspec.json.decode(path.read_bytes(), type=Soak)


def text(soak: Soak) -> str:
    """Markdown."""
    hours = soak.minutes * soak.compression / 60
    requests = soak.samples[-1].requests if soak.samples else 0
    stood = (
        f"{soak.minutes:g} minutes stood for {hours:.1f} hours ({soak.started_at[:10]}, commit "
        f"{soak.machine.get('commit', 'unknown')}): every time-out of the server was divided by {soak.compression:g}.  "
        f"{soak.engines} engines sent {requests:,} requests; one in three had no shared memory."
    )
    lines = ["| | before | highest in the second half | after all engines had gone |", "|---|---|---|---|"]
    rows: Sequence[tuple[str, Callable[[Sample], float]]] = (
        ("anonymous memory, MB", lambda sample: sample.anonymous_bytes / MB),
        ("resident without L1, MB", lambda sample: sample.unique_bytes / MB),
        ("file descriptors", lambda sample: sample.descriptors),
        ("threads", lambda sample: sample.threads),
        ("leases", lambda sample: sample.leases),
        ("lookups open", lambda sample: sample.lookups_open),
        ("slots held", lambda sample: sample.held),
        ("slots in quarantine", lambda sample: sample.quarantined),
        ("workers", lambda sample: sample.workers),
    )
    if soak.before and soak.after and soak.late:
        for name, value in rows:
            cells = (value(soak.before), max(map(value, soak.late)), value(soak.after))
            lines.append(f"| {name} | " + " | ".join(f"{cell:.0f}" for cell in cells) + " |")
    did = ", ".join(f"{what} {count:,}" for what, count in sorted(soak.tally.items()))
    wrong = "; ".join(soak.complaints[:10]) or "none"
    did_wrong = [f"What the engines did: {did}.", f"Complaints: {wrong}."]
    return "\n\n".join([stood, _memory(soak), "\n".join(lines), *did_wrong])


def draw(soak: Soak, folder: Path) -> list[Path]:
    """Draw memory, descriptors, leases and objects over the hours that the run represents.  Returns the files."""
    return plots.save(partial(_panels, soak), folder, PICTURE)


def _panels(soak: Soak) -> Figure:
    figure, axes = plt.subplots(len(PANELS), 1, figsize=(8.0, 6.4), sharex=True, layout="constrained")
    hours = [sample.seconds * soak.compression / 3600 for sample in soak.samples]
    for panel, (name, value) in zip(axes, PANELS, strict=True):
        panel.plot(hours, [value(sample) for sample in soak.samples], color="#1f8f6b", linewidth=1.2)
        panel.axvspan(0, min(soak.warm_up_seconds, soak.minutes * 60) * soak.compression / 3600, color=plots.GRID)
        panel.set_ylim(bottom=0)
        panel.set_title(name, loc="left", fontsize=9)
        panel.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel("hours that the run represents; grey: warm-up")
    return figure


def _memory(soak: Soak) -> str:
    match soak.trend:
        case Trend() as found:
            verdict = found.verdict(soak.tolerance)
            return (
                f"Anonymous memory after the warm-up: **{verdict}**, {found.slope:,.0f} bytes per 1,000 requests, with 95 % "
                f"confidence {found.low:,.0f} to {found.high:,.0f}; flat means surely below {soak.tolerance:,.0f}."
            )
        case None:
            return "Too short to say whether memory grows."
