"""The remote benchmark as a part of docs/internals/benchmarks.md."""

from __future__ import annotations

from typing import Final, NamedTuple

from benchmarks import remote_public
from benchmarks.l2_cell import CPU, SPEED, VERBS, Cell
from benchmarks.l2_pairs import partner_of
from benchmarks.remote_subjects import SUBJECTS
from benchmarks.results import Results, Spread
from benchmarks.tables import number

_HEAD: Final = (
    "backend", "object, in flight", "", "adapter, GB/s", "partner", "partner, GB/s", "ratio of the pairs", "aim", "pairs",
    "CPU, s/GB", "partner's CPU, s/GB",
)  # fmt: skip


class Row(NamedTuple):
    """Who is measured beside whom."""

    subject: str
    describes: str
    partner: str
    aim: float


ROWS: Final = (
    *(Row(subject.name, subject.describes, subject.partner, subject.aim) for subject in SUBJECTS),
    Row(remote_public.NAME, remote_public.DESCRIBES, remote_public.PARTNER, remote_public.AIM),
)


def page(results: Results) -> str:
    """When and where, the table, what was not reached, and what failed."""
    lines, missed, shown = [], [], []
    for row in ROWS:
        found = [cell for cell in _cells(results) if results.spread(cell.figure(SPEED), row.subject)]
        for cell in found:
            ratio = results.ratios(cell.figure(SPEED), row.subject, partner_of(row.subject, row.partner))
            if ratio is None:
                continue
            shown += [row] if row not in shown else []
            lines.append(_line(results, row, cell, ratio))
            if ratio.median < row.aim:
                where = f"{cell.size_mib} MiB, {cell.depth} in flight, {cell.verb}"
                missed.append(
                    f"* {row.subject}: {number(ratio.median, 2)} of {row.partner} ({where}); aim {row.aim:.2f}"
                )
    table = [_joined(_HEAD), "|" + "---|" * len(_HEAD), *lines] if lines else []
    verdict = ["Not reached:", "\n".join(missed)] if missed else ["Every median reaches its aim."] if lines else []
    failed = ["Not measured, or not to the end:", "\n".join(f"* {each}" for each in results.failures)]
    parts = [_taken(results), *_busy(results), "\n".join(f"* **{row.subject}**: {row.describes}" for row in shown)]
    return "\n\n".join((*parts, "\n".join(table), *verdict, *(failed if results.failures else [])))


def _cells(results: Results) -> list[Cell]:
    cells = {Cell.of(figure)[0] for figure in results.samples}
    return sorted(cells, key=lambda cell: (cell.size_mib, -cell.depth, VERBS.index(cell.verb)))


def _line(results: Results, row: Row, cell: Cell, ratio: Spread) -> str:
    other = partner_of(row.subject, row.partner)
    speed, cpu = cell.figure(SPEED), cell.figure(CPU)
    both = results.samples[speed][row.subject].keys() & results.samples[speed][other].keys()
    aim = f"{row.aim:.2f}" + ("" if ratio.median >= row.aim else ", **not reached**")
    return _joined(
        (
            row.subject, f"{cell.size_mib} MiB, {cell.depth}", cell.verb, _spread(results.spread(speed, row.subject)),
            row.partner, _spread(results.spread(speed, other)),
            f"**{number(ratio.median, 2)}** ({number(ratio.least, 2)} to {number(ratio.most, 2)})", aim, str(len(both)),
            _median(results.spread(cpu, row.subject)), _median(results.spread(cpu, other)),
        )
    )  # fmt: skip


def _taken(results: Results) -> str:
    machine = results.machine
    return (
        f"Taken on {results.started_at[:10]}, commit {machine.get('commit', 'unknown')}: {machine.get('cores')} cores of "
        f"{machine.get('cpu')}, {machine.get('memory')}; servers and clients on the same cores; "
        f"{results.seconds / 60:.0f} minutes.  Load before it began: {machine.get('load', 'unknown')}."
    )


def _busy(results: Results) -> list[str]:
    load, cores = float(results.machine.get("load", "0").split()[0]), int(results.machine.get("cores", "1"))
    return [] if load < cores / 4 else ["**The machine was busy with other work: read CPU time only.**"]


def _spread(spread: Spread | None) -> str:
    return "" if spread is None else f"{spread.median:.3g} ({spread.least:.3g} to {spread.most:.3g})"


def _median(spread: Spread | None) -> str:
    return "" if spread is None else number(spread.median, 2)


def _joined(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cells) + " |"
