"""Results as pictures: one line per case, one dot per subject, a bar where it should be, on a logarithmic axis.

Every picture is drawn twice, for light and for dark pages, and the page shows the one that fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from benchmarks.catalogue import FIGURES
from benchmarks.results import Results

STYLES: Final = {
    "echo": ("#9a9a9a", "D", "echo: the least a server can do"),
    "native": ("#1f8f6b", "o", "this server, native"),
    "pure": ("#4fb286", "o", "this server, pure Python"),
    "public": ("#c8553d", "s", "public LMCache 0.5.6"),
}
"""Colour, marker and what the legend says."""
WIDTH: Final = 8.0
THEMES: Final = {"light": "default", "dark": "dark_background"}
"""The styles of matplotlib for each kind of page."""
GRID: Final = "#80808055"


@dataclass(frozen=True, slots=True)
class Picture:
    name: str
    title: str
    axis: str
    figures: Sequence[str]


PICTURES: Final = (
    Picture(
        "benchmarks-lookup",
        "Server CPU of one lookup cycle",
        "ms of CPU, all threads",
        (
            "lookup_64_known_cpu_ms",
            "lookup_64_new_cpu_ms",
            "lookup_512_known_cpu_ms",
            "lookup_512_new_cpu_ms",
            "lookup_grown_cpu_ms",
        ),
    ),
    Picture(
        "benchmarks-beside",
        "A noop while another engine looks up 131,072 tokens without pause",
        "ms",
        (
            "noop_p50_beside_known_ms",
            "noop_p99_beside_known_ms",
            "noop_p50_beside_new_ms",
            "noop_p99_beside_new_ms",
        ),
    ),
)


def draw(results: Results, folder: Path) -> list[Path]:
    """Every picture that the results have the figures for.  Returns the files."""
    drawn = []
    for picture in PICTURES:
        figures = [name for name in picture.figures if name in results.samples]
        if not figures:
            continue
        drawn += save(partial(_picture, results, picture, figures), folder, picture.name)
    return drawn


def save(drawing: Callable[[], Figure], folder: Path, name: str) -> list[Path]:
    """Write `name-light.svg` and `name-dark.svg`, the same bytes for the same figure.  Returns the files."""
    paths = []
    for theme, style in THEMES.items():
        with plt.style.context(style), mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
            figure = drawing()
            paths.append(folder / f"{name}-{theme}.svg")
            figure.savefig(paths[-1], transparent=True, metadata={"Date": None, "Creator": None})
            plt.close(figure)
    return paths


def shown(title: str, name: str) -> str:
    """Markdown that shows one of a picture's two files, in the site and on GitHub."""
    return "\n".join(f"![{title}]({name}-{theme}.svg#gh-{theme}-mode-only)" for theme in THEMES)


def _picture(results: Results, picture: Picture, figures: Sequence[str]) -> Figure:
    figure, axes = plt.subplots(figsize=(WIDTH, 1.3 + 0.55 * len(figures)), layout="constrained")
    _cases(axes, results, figures)
    axes.set_title(picture.title, loc="left", fontsize=11)
    axes.set_xlabel(f"{picture.axis}; less is better, a bar is where it should be")
    return figure


def _cases(axes: Axes, results: Results, names: Sequence[str]) -> None:
    subjects = [name for name in STYLES if any(name in results.samples[figure] for figure in names)]
    step = 0.7 / max(1, len(subjects))
    for row, name in enumerate(names):
        for place, subject in enumerate(subjects):
            spread = results.spread(name, subject)
            if spread is None:
                continue
            colour, marker, label = STYLES[subject]
            y = row + (place - (len(subjects) - 1) / 2) * step
            axes.plot([spread.least, spread.most], [y, y], color=colour, linewidth=2, alpha=0.5)
            axes.plot(spread.median, y, marker, color=colour, label=label if row == 0 else None)
            aim = FIGURES[name].aims.get(subject)
            echo = results.spread(name, "echo")
            if aim and (wanted := aim.value(echo.median if echo else None)) is not None:
                axes.plot(wanted, y, "|", color=colour, markersize=9, markeredgewidth=1.5)
            shown = f"{spread.median:.3g}"
            axes.annotate(shown, (spread.most, y), (5, 0), "data", "offset points", va="center", fontsize=7)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.margins(x=0.12)
    axes.set_yticks(range(len(names)), [_label(name) for name in names])
    axes.invert_yaxis()
    axes.grid(axis="x", which="major", color=GRID)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def _label(name: str) -> str:
    return FIGURES[name].label.removesuffix(", server CPU")
