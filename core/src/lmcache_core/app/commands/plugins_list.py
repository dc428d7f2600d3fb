"""`lmcache plugins list`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lmcache_core.app.console.command_line import CommandParser, add_selection_flags, selection_of
from lmcache_core.app.console.command_output import CommandOutput, add_output_flags, text_table
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_core.app.plugins.catalogue import not_installed
from lmcache_core.app.plugins.discovery import PluginRow
from lmcache_core.app.plugins.offer_kind import Offered
from lmcache_core.contracts.capability import Capability


def parsers() -> list[CommandParser]:
    parser = CommandParser(
        "lmcache plugins list", "Show which plugins are installed, and what is wrong with any of them."
    )
    parser.add_argument("--verbose", action="store_true", help="print what each offer is, and all of each error")
    add_selection_flags(parser)
    add_output_flags(parser)
    return [parser]


def run(arguments: Sequence[str]) -> ExitCode:
    given = parsers()[0].parse_all(arguments)
    rows = selection_of(given).load_for_user().rows()
    hint = not_installed(row.candidate.distribution or "" for row in rows)
    CommandOutput.of(given).show(
        [record(row) for row in rows], as_table(rows, given.verbose) + (f"\n\n{hint}" if hint else "")
    )
    return ExitCode.STOPPED


def as_table(rows: Sequence[PluginRow], verbose: bool) -> str:
    """One line per plugin; what is wrong with one, and with `verbose` what each offer is, on lines below."""
    head = ("NAME", "DISTRIBUTION", "VERSION", "ORIGIN", "STATUS", "OFFERS")
    lines = text_table([head, *(_cells(row) for row in rows)])
    report = [lines[0]]
    for row, line in zip(rows, lines[1:], strict=True):
        report.append(line)
        below = [text for text in (row.error, row.remedy, *row.conflicts, row.slowness) if text]
        report += [f"    {text}" for text in (*below, *(_details(row) if verbose else ()))]
    return "\n".join(report)


def _cells(row: PluginRow) -> tuple[str, ...]:
    about = row.candidate
    offers = ", ".join(f"{offered.kind}:{offered.offer.name}" for offered in row.offers)
    return (about.name, about.distribution or "-", about.version or "-", about.origin, row.status, offers or "-")


def _details(row: PluginRow) -> list[str]:
    lines = [f"module {row.candidate.module}"]
    if row.setup_ms is not None:
        lines.append(f"set up in {row.setup_ms:.1f} ms")
    lines += (row.traceback or "").splitlines()
    for offered in row.offers:
        default = " (active by default)" if offered.offer.default else ""
        able = f" [{capability_words(offered.offer.capabilities)}]" if offered.offer.capabilities else ""
        lines.append(f"{offered.kind.label} '{offered.offer.name}': {offered.offer.summary}{able}{default}")
    return lines


def record(row: PluginRow) -> dict[str, Any]:
    about = row.candidate
    return {
        "name": about.name,
        "module": about.module,
        "distribution": about.distribution,
        "version": about.version,
        "origin": about.origin,
        "status": row.status,
        "error": row.error,
        "remedy": row.remedy,
        "conflicts": list(row.conflicts),
        "traceback": row.traceback,
        "setup_ms": None if row.setup_ms is None else round(row.setup_ms, 3),
        "offers": [offer_record(offered) for offered in row.offers],
    }


def offer_record(offered: Offered) -> dict[str, Any]:
    offer = offered.offer
    return {
        "kind": offered.kind,
        "name": offer.name,
        "summary": offer.summary,
        "default": offer.default,
        "capabilities": [str(each.name) for each in offer.capabilities],
        "optional_capabilities": [str(each.name) for each in offer.optional_capabilities],
        "settings": offer.settings,
        "open": offer.open,
    }


def capability_words(flags: Capability) -> str:
    return ", ".join(str(each.name).lower() for each in flags)
