"""The results as a picture: speed against depth, a panel for each size and each mix."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, Final

from lmcache_client.errors import ConfigError
from lmcache_tools.bench.comparison import Results
from lmcache_tools.bench.figures import Figures
from lmcache_tools.bench.plan import Plan
from lmcache_tools.bench.traffic import Sample
from lmcache_tools.quantities import size_text

_MARKERS: Final = "osD^vP*X<>"
_WIDTH, _HEIGHT = 4.6, 3.6


def require_matplotlib() -> None:
    """Raises ConfigError when nothing can be drawn, so that it is known before minutes of measuring."""
    try:
        import_module("matplotlib.figure")  # here, because only a picture needs it
    except ImportError:
        raise ConfigError("--png needs matplotlib: pip install 'lmcache-tools[plot]'") from None


def draw(plan: Plan, results: Results, path: Path) -> None:
    """Write a PNG.  Raises OSError for a file that cannot be written."""
    shares, sizes = sorted(set(plan.shares)), plan.sizes
    figure = import_module("matplotlib.figure").Figure(
        figsize=(_WIDTH * len(shares) + 1.8, _HEIGHT * len(sizes)), layout="constrained"
    )
    panels = figure.subplots(len(sizes), len(shares), squeeze=False, sharex=True)
    for row, size in enumerate(sizes):
        for column, share in enumerate(shares):
            _panel(panels[row][column], results, size, share)
            panels[row][column].set_xscale("log", base=2)
            panels[row][column].set_xticks(list(plan.depths), [str(depth) for depth in plan.depths])
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False)
    figure.savefig(path, dpi=150, format="png")


def _panel(axes: Any, results: Results, size: int, share: int) -> None:
    scores = [
        score
        for score in results.scores.values()
        if (score.cell.object_bytes, score.cell.loads_percent) == (size, share) and score.own
    ]
    for index, name in enumerate(dict.fromkeys(score.name for score in scores)):
        own = [(score.cell.depth, score.own) for score in scores if score.name == name]
        medium = [(score.cell.depth, score.medium) for score in scores if score.name == name and score.medium]
        marker, colour = _MARKERS[index % len(_MARKERS)], f"C{index % 10}"
        _line(axes, own, label=name, marker=marker, color=colour)
        if medium:
            _line(axes, medium, label=f"medium of {name}", color=colour, linestyle="--", alpha=0.7)
    what = scores[0].cell.what if scores else ""
    axes.set_title(f"{what}, objects of {size_text(size)}", loc="left", fontsize="medium")
    axes.set_xlabel("queue depth")
    axes.set_ylabel("GB/s")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)


def _line(axes: Any, points: list[tuple[int, list[Sample]]], **style: Any) -> None:
    """Medians, with the rounds' spread as bars."""
    spreads = [Figures.of(samples).bytes_per_second for _, samples in points]
    middles = [spread.median / 1e9 for spread in spreads]
    below = [middle - spread.least / 1e9 for middle, spread in zip(middles, spreads, strict=True)]
    above = [spread.most / 1e9 - middle for middle, spread in zip(middles, spreads, strict=True)]
    axes.errorbar([depth for depth, _ in points], middles, yerr=[below, above], capsize=3, **style)
