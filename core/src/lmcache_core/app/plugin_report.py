"""`lmcache plugins list`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from lmcache_core.app.plugin_row import PluginRow
from lmcache_core.app.text_table import text_table


def as_table(rows: Sequence[PluginRow], verbose: bool) -> str:
    """One line per plugin; what is wrong with one, and with `verbose` what each offer is, on lines below."""
    head = ("NAME", "DISTRIBUTION", "VERSION", "ORIGIN", "STATUS", "OFFERS")
    lines = text_table([head, *(_cells(row) for row in rows)])
    report = [lines[0]]
    for row, line in zip(rows, lines[1:], strict=True):
        report.append(line)
        report += [f"    {text}" for text in (*_complaints(row), *(_details(row) if verbose else ()))]
    return "\n".join(report)


def as_json(rows: Sequence[PluginRow]) -> str:
    return json.dumps([_record(row) for row in rows], indent=2)


def _cells(row: PluginRow) -> tuple[str, ...]:
    about = row.candidate
    offers = ", ".join(f"{offered.kind}:{offered.offer.name}" for offered in row.offers)
    return (about.name, about.distribution or "-", about.version or "-", about.origin, row.status, offers or "-")


def _complaints(row: PluginRow) -> list[str]:
    return [text for text in (row.error, row.remedy) if text]


def _details(row: PluginRow) -> list[str]:
    lines = [f"module {row.candidate.module}"]
    for offered in row.offers:
        default = " (active by default)" if offered.offer.default else ""
        able = f" [{_capabilities(offered.offer.capabilities)}]" if offered.offer.capabilities else ""
        lines.append(f"{offered.kind.label} '{offered.offer.name}': {offered.offer.summary}{able}{default}")
    return lines


def _record(row: PluginRow) -> dict[str, Any]:
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
        "offers": [
            {
                "kind": offered.kind,
                "name": offered.offer.name,
                "summary": offered.offer.summary,
                "default": offered.offer.default,
                "capabilities": [str(each.name) for each in offered.offer.capabilities],
                "settings": offered.offer.settings,
                "open": offered.offer.open,
            }
            for offered in row.offers
        ],
    }


def _capabilities(flags: Any) -> str:
    return ", ".join(str(each.name).lower() for each in flags)
