"""Results as Markdown tables."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.catalogue import Figure, Table
from benchmarks.results import Results, Spread

HEADINGS = {"echo": "echo", "native": "native", "pure": "pure", "public": "public"}
"""Subjects in the order of their columns."""
OURS = ("native", "pure")


def table(results: Results, shown: Table) -> str:
    """One row per figure that was measured, one column per subject; empty when nothing was."""
    figures = [figure for figure in shown.figures if figure.name in results.samples]
    subjects = [name for name in HEADINGS if any(name in results.samples[figure.name] for figure in figures)]
    if not figures:
        return ""
    best = next((name for name in OURS if name in subjects), None)
    compared = [best] if best and "public" in subjects else []
    heading = ["figure", *(HEADINGS[name] for name in subjects), *(f"{name} / public" for name in compared), "aim"]
    lines = [_row(heading), "|" + "---|" * len(heading)]
    for figure in figures:
        cells = [_spread(results.spread(figure.name, name), figure.digits) for name in subjects]
        cells += [_spread(results.ratios(figure.name, name, "public"), 2) for name in compared]
        lines.append(_row([f"{figure.label}, {figure.unit}", *cells, _aims(results, figure, subjects)]))
    return "\n".join(lines)


def summary(results: Results, tables: Sequence[Table]) -> str:
    """All of them, for a terminal."""
    parts = [f"{one.heading}\n\n{text}" for one in tables if (text := table(results, one))]
    return "\n\n".join(parts)


def number(value: float, digits: int) -> str:
    return f"{value:,.{digits}f}"


def _spread(spread: Spread | None, digits: int) -> str:
    if spread is None:
        return ""
    middle, least, most = (number(value, digits) for value in spread)
    return middle if least == most else f"{middle} ({least} to {most})"


def _aims(results: Results, figure: Figure, subjects: Sequence[str]) -> str:
    """What each of ours should reach, and whether it does."""
    echo = results.spread(figure.name, "echo")
    said = []
    for name, aim in figure.aims.items():
        measured = results.spread(figure.name, name)
        value = aim.value(echo.median if echo else None)
        if name not in subjects or measured is None or value is None:
            continue
        verdict = "" if figure.reached(measured.median, value) else ", not reached"
        said.append(f"{name} {number(value, figure.digits)}{verdict}")
    return "; ".join(said)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
