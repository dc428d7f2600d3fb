"""The outcome as a picture: hit rate against capacity."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, Final

from lmcache_core import ConfigError
from lmcache_policies.simulate.outcome import Outcome

_MARKERS: Final = "osD^vP*X<>"
_STYLES: Final = ("-", "--", "-.")


def require_matplotlib() -> None:
    """Raises ConfigError when nothing can be drawn, so that it is known before hours of replay."""
    try:
        import_module("matplotlib.figure")  # here, because only a plot needs it
    except ImportError:
        raise ConfigError("--plot needs matplotlib: pip install 'lmcache-policies[plot]'") from None


def draw(outcome: Outcome, path: Path) -> None:
    """Write a picture in the format that the name ends in.  Raises ConfigError for a name that ends in none, OSError
    for a file that cannot be written."""
    figure = import_module("matplotlib.figure").Figure(figsize=(9.0, 5.5), layout="constrained")
    axes = figure.add_subplot()
    sizes = [capacity.blocks for capacity in outcome.capacities]
    rates = [100 * outcome.rate(foresight.hits) for foresight in outcome.clairvoyant]
    axes.plot(sizes, rates, color="gray", linewidth=2.5, linestyle=":", marker=".", label="clairvoyant", zorder=1)
    for index, (contender, results) in enumerate(outcome.policies):
        below = 2.0 * (1 - index / len(outcome.policies))  # wider than what is drawn over it, where lines coincide
        axes.plot(
            sizes,
            [100 * outcome.rate(result.hits) for result in results],
            marker=_MARKERS[index % len(_MARKERS)],
            linestyle=_STYLES[index // len(_MARKERS) % len(_STYLES)],
            markersize=4 + 2 * below,
            linewidth=1.2 + below,
            label=contender.label,
        )
    _label(axes, outcome)
    figure.legend(loc="outside right upper", frameon=False)
    try:
        figure.savefig(path, dpi=150)
    except ValueError as error:  # an ending that matplotlib does not know
        raise ConfigError(f"--plot {path}: {error}") from None


def _label(axes: Any, outcome: Outcome) -> None:
    trace, capacities = outcome.trace, outcome.capacities
    axes.set_xscale("log")
    axes.set_xticks([capacity.blocks for capacity in capacities], [_tick(c.text, c.blocks) for c in capacities])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("capacity in blocks")
    axes.set_ylabel("hits in % of blocks")
    axes.set_title(
        f"{Path(trace.path).name}: {trace.requests:,} requests, {trace.distinct:,} distinct blocks",
        loc="left",
        fontsize="medium",
    )
    axes.grid(alpha=0.3)


def _tick(text: str, blocks: int) -> str:
    return f"{blocks:,}" if text.isdigit() else f"{text}\n{blocks:,}"
