"""Writes the generated parts of docs/internals/benchmarks.md, and its pictures, from runs that were kept.

    .venv/bin/python -m benchmarks.report [--run FILE] [--soak FILE]

Without files the newest complete run and the newest soak are taken.  What is outside of the marked parts is left alone.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from textwrap import wrap
from typing import Final

from benchmarks import plots
from benchmarks.catalogue import TABLES
from benchmarks.results import Results, load, newest
from benchmarks.soak import report as soak_report
from benchmarks.tables import number, table

DOCS: Final = Path(__file__).resolve().parent.parent / "docs"
PAGE: Final = DOCS / "internals" / "benchmarks.md"
RUN: Final = "run"
SOAK: Final = "soak"
COLUMNS: Final = 120


def replaced(page: str, part: str, text: str) -> str:
    """The page with another text between `<!-- part: begin -->` and `<!-- part: end -->`.  Raises ValueError when it has
    no such part."""
    begin, end = f"<!-- {part}: begin -->", f"<!-- {part}: end -->"
    pattern = re.compile(re.escape(begin) + r".*?" + re.escape(end), re.DOTALL)
    if len(pattern.findall(page)) != 1:
        raise ValueError(f"the page needs one '{begin}' with its '{end}'")
    return pattern.sub(lambda _: f"{begin}\n\n{wrapped(text.strip())}\n\n{end}", page)


def wrapped(text: str) -> str:
    """Paragraphs and list items in lines of at most 120 characters; tables as they are."""
    lines: list[str] = []
    for line in text.split("\n"):
        if len(line) <= COLUMNS or line.startswith("|"):
            lines.append(line)
        else:
            hanging = "  " if line.startswith("* ") else ""
            lines += wrap(line, COLUMNS, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


def run_text(results: Results) -> str:
    """The tables of a run, with the machine that they were taken on."""
    machine, limits = results.machine, results.limits
    rounds = max((len(by) for figure in results.samples.values() for by in figure.values()), default=0)
    taken_on = f"{results.started_at[:10]}, commit {machine.get('commit', 'unknown')}"
    turns = "round" if rounds == 1 else "rounds"
    taken = (
        f"Taken on {taken_on}: {machine.get('cores')} cores of {machine.get('cpu')}, {machine.get('memory')}, Python "
        f"{machine.get('python')}, no GPU; {rounds} {turns}, in {number(results.seconds / 60, 0)} minutes.  Limits of the "
        f"machine in the same run: one thread copies {number(limits.get('memcpy_gb_s', 0), 1)} GB/s, and 64 bytes over "
        f"loopback TCP and back take {number(limits.get('loopback_us', 0), 0)} us (p50)."
    )
    parts = [taken, *_busy(machine), _subjects(results)]
    pictures = {"lookups": "benchmarks-lookup", "round-trips": "benchmarks-beside"}
    for shown in TABLES:
        if not (text := table(results, shown)):
            continue
        parts += [f"### {shown.heading}", shown.says, text]
        if shown.name in pictures:
            parts.append(plots.shown(shown.heading, pictures[shown.name]))
    return "\n\n".join(parts)


def write(results: Results | None, soak: Path | None = None, page: Path = PAGE) -> list[Path]:
    """Everything that the page shows of these.  Returns the files that were written."""
    text, written = page.read_text(), [page]
    if results is not None:
        text = replaced(text, RUN, run_text(results))
        written += plots.draw(results, page.parent)
    if soak is not None:
        samples = soak_report.load(soak)
        text = replaced(text, SOAK, soak_report.text(samples))
        written += soak_report.draw(samples, page.parent)
    page.write_text(text)
    return written


def _busy(machine: Mapping[str, str]) -> list[str]:
    """A warning, when something else ran on the machine before the run began."""
    load, cores = float(machine.get("load", "0").split()[0]), int(machine.get("cores", "1"))
    if load < cores / 4:
        return []
    return [
        f"**The machine was busy with other work (load {load:g} on {cores} cores): read CPU time and ratios only.**"
    ]


def _subjects(results: Results) -> str:
    return "\n".join(f"* **{name}**: {describes}" for name, describes in results.subjects.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=newest("all"))
    parser.add_argument("--soak", type=Path, default=newest("soak"))
    args = parser.parse_args()
    for path in write(load(args.run) if args.run else None, args.soak):
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
