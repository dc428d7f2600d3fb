"""`lmcache plugins list`"""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core.app.console.command_line import Parser
from lmcache_core.app.console.command_output import CommandOutput, add_output_flags
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_core.app.plugins.catalogue import not_installed
from lmcache_core.app.plugins.missing_modules import missing_modules
from lmcache_core.app.plugins.plugin_report import as_table, record
from lmcache_core.app.plugins.plugin_selection import add_selection_flags, selection_of


def parsers() -> list[Parser]:
    parser = Parser("lmcache plugins list", "Show which plugins are installed, and what is wrong with any of them.")
    parser.add_argument("--verbose", action="store_true", help="print what each offer is, and all of each error")
    add_selection_flags(parser)
    add_output_flags(parser)
    return [parser]


def run(arguments: Sequence[str]) -> ExitCode:
    given = parsers()[0].parse_all(arguments)
    rows = selection_of(given).load_for_user().rows()
    missing = missing_modules(rows)
    records = [record(row, absent) for row, absent in zip(rows, missing, strict=True)]
    hint = not_installed(row.candidate.distribution or "" for row in rows)
    CommandOutput.of(given).show_text(records, as_table(rows, missing, given.verbose) + (f"\n\n{hint}" if hint else ""))
    return ExitCode.STOPPED
