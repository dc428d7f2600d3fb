"""`lmcache plugins`"""

from __future__ import annotations

import os
from collections.abc import Sequence

from lmcache_core.app.command_line import Parser
from lmcache_core.app.exit_code import ExitCode
from lmcache_core.app.plugin_report import as_json, as_table
from lmcache_core.app.plugins import load_plugins
from lmcache_core.model.errors import ConfigError


def run(arguments: Sequence[str]) -> ExitCode:
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: lmcache plugins list [--json] [--verbose] [--plugin NAME] [--no-plugin NAME]")
        return ExitCode.STOPPED if arguments else ExitCode.USAGE
    if arguments[0] != "list":
        raise ConfigError(f"no command is called 'plugins {arguments[0]}'; did you mean 'plugins list'?")
    return _list(arguments[1:])


def _list(arguments: Sequence[str]) -> ExitCode:
    parser = Parser("lmcache plugins list", "Show which plugins are installed, and what is wrong with any of them.")
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    parser.add_argument("--verbose", action="store_true", help="print what each offer is")
    parser.add_argument("--plugin", action="append", metavar="NAME", help="as for lmcache server")
    parser.add_argument("--no-plugin", action="append", metavar="NAME", help="as for lmcache server")
    given = parser.parse_all(arguments)
    selected = given.plugin if given.plugin is not None else _names("LMCACHE_PLUGINS")
    blocked = given.no_plugin if given.no_plugin is not None else _names("LMCACHE_NO_PLUGINS")
    rows = load_plugins(selected, blocked, strict=False).rows()
    print(as_json(rows) if given.json else as_table(rows, given.verbose))
    return ExitCode.STOPPED


def _names(variable: str) -> list[str]:
    return [name for part in os.environ.get(variable, "").split(",") if (name := part.strip())]
