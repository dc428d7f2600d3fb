"""`lmcache plugins list`"""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core.app.command_line import Parser
from lmcache_core.app.exit_code import ExitCode
from lmcache_core.app.plugin_report import as_json, as_table
from lmcache_core.app.plugin_selection import add_selection_flags, selection_of


def run(arguments: Sequence[str]) -> ExitCode:
    parser = Parser("lmcache plugins list", "Show which plugins are installed, and what is wrong with any of them.")
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    parser.add_argument("--verbose", action="store_true", help="print what each offer is, and all of each error")
    add_selection_flags(parser)
    given = parser.parse_all(arguments)
    rows = selection_of(given).load_for_user().rows()
    print(as_json(rows) if given.json else as_table(rows, given.verbose))
    return ExitCode.STOPPED
