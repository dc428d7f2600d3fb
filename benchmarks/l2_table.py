"""The L2 benchmark as Markdown."""

from __future__ import annotations

from typing import Final

from benchmarks.l2_cell import CPU, SPEED, VERBS, Cell
from benchmarks.l2_pairs import partner_of
from benchmarks.l2_subjects import BUFFERED, DIRECT, MEMORY, SUBJECTS, Subject
from benchmarks.results import Results, Spread
from benchmarks.tables import number

_MODES: Final = {
    BUFFERED: "through the page cache",
    DIRECT: "past the page cache (O_DIRECT)",
    MEMORY: "memory",
}
PARTNERS: Final = ("fio", "memcpy", "public")


def text(results: Results) -> str:
    """A section for each mode and partner that was measured: what ours reaches of it, pair by pair."""
    parts = []
    for partner in PARTNERS:
        for mode, describes in _MODES.items():
            if lines := _lines(results, mode, partner):
                cells = _cells(results, mode, partner)
                depths = sorted({cell.depth for cell in cells})
                head = ["adapter", "object", "", *(f"depth {depth}" for depth in depths), *_more(partner)]
                rows = [_row(head), "|" + "---|" * len(head), *lines]
                parts.append(f"#### Beside {_PARTNER_NAMES[partner]}: {describes}\n\n" + "\n".join(rows))
    return "\n\n".join(parts)


_PARTNER_NAMES: Final = {"fio": "fio", "memcpy": "a copy in memory", "public": "the public server"}


def _more(partner: str) -> list[str]:
    spread = {
        "fio": ["fio's spread, up to", "CPU, s/GB", "fio's CPU, s/GB"],
        "memcpy": ["CPU, s/GB", "copy's CPU, s/GB"],
    }
    return spread.get(partner, [])


def _lines(results: Results, mode: str, partner: str) -> list[str]:
    cells = _cells(results, mode, partner)
    lines = []
    for subject in SUBJECTS:
        for size in sorted({cell.size_mib for cell in cells}):
            for verb in VERBS:
                line = [cell for cell in cells if (cell.size_mib, cell.verb) == (size, verb)]
                if found := _line(results, subject, sorted(line), partner):
                    lines.append(_row([subject.name, f"{size} MiB", verb, *found]))
    return lines


def _cells(results: Results, mode: str, partner: str) -> list[Cell]:
    found = set()
    for name, subjects in results.samples.items():
        cell, unit = Cell.of(name)
        if cell.mode == mode and unit == SPEED and any(one.startswith(f"{partner} beside ") for one in subjects):
            found.add(cell)
    return sorted(found)


def _line(results: Results, subject: Subject, cells: list[Cell], partner: str) -> list[str] | None:
    """None where this adapter was not measured."""
    own = _OWN_NAMES[partner].format(subject.name)
    other = partner_of(subject.name, partner)
    ratios = [results.ratios(cell.figure(SPEED), own, other) for cell in cells]
    if not any(ratios):
        return None
    shown = [_pair(results, cell, own, ratio) for cell, ratio in zip(cells, ratios, strict=True)]
    if partner == "public":
        return shown
    spreads = [results.spread(cell.figure(SPEED), other) for cell in cells]
    widest = max((spread.most / spread.least for spread in spreads if spread and spread.least), default=0.0)
    variation = [f"{number(widest, 1)} x"] if partner == "fio" else []
    return [*shown, *variation, *(_cpu(results, cells, name) for name in (own, other))]


_OWN_NAMES: Final = {"fio": "{}", "memcpy": "{}", "public": "{} in batches"}
"""What an adapter is called that was measured beside each of them."""


def _pair(results: Results, cell: Cell, own: str, ratio: Spread | None) -> str:
    speed = results.spread(cell.figure(SPEED), own)
    if speed is None or ratio is None:
        return ""
    middle, least, most = (number(value, 2) for value in ratio)
    return f"{number(speed.median, 2)}, **{middle}** ({least} to {most})"


def _cpu(results: Results, cells: list[Cell], name: str) -> str:
    """Least to most over the depths."""
    values = [spread.median for cell in cells if (spread := results.spread(cell.figure(CPU), name))]
    return f"{number(min(values), 2)} to {number(max(values), 2)}" if values else ""


def verdicts(results: Results) -> list[str]:
    """Every cell whose median is below its aim, in words."""
    missed = []
    for name in results.samples:
        cell, unit = Cell.of(name)
        for subject in SUBJECTS if unit == SPEED else ():
            for partner, aim in (("fio", subject.aim), ("memcpy", subject.aim), ("public", 1.0)):
                own, other = _OWN_NAMES[partner].format(subject.name), partner_of(subject.name, partner)
                ratio = results.ratios(name, own, other)
                if ratio is not None and ratio.median < aim:
                    where = f"{cell.mode}, {cell.size_mib} MiB, depth {cell.depth}, {cell.verb}"
                    missed.append(
                        f"{subject.name}: {number(ratio.median, 2)} of {_PARTNER_NAMES[partner]} ({where}); aim {aim:.2f}"
                    )
    return missed


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"
