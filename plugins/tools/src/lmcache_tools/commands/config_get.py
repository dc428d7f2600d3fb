"""`lmcache config get`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lmcache_core import Command, CommandContext, CommandParser
from lmcache_core.app.console.command_line import command_selection
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_core.contracts.server_control import ShownSetting
from lmcache_tools.admin_client import AdminClient, add_server_flags
from lmcache_tools.commands.config_show import add_view_flags, show_values
from lmcache_tools.loose_json import Loose


def parsers() -> list[CommandParser]:
    parser = CommandParser(
        "lmcache config get",
        "Show every setting of a running server, its value and where that comes from.  Secrets are hidden.",
    )
    add_view_flags(parser)
    add_server_flags(parser)
    return [parser]


def run(arguments: Sequence[str], context: CommandContext) -> ExitCode:
    given = parsers()[0].parse_all(arguments)
    said = Loose(AdminClient.of(given).ask("GET", "/config")) / "settings"
    named = said.items() or [((each / "name").text(), each) for each in said]
    rows = [
        ShownSetting(
            name,
            (each / "value").value,
            (each / "source").text() or "unknown",
            (each / "given_by").text(),
            (each / "default").value,
        )
        for name, each in named
    ]
    return show_values(rows, given, command_selection().load())


COMMAND: Final = Command(run, parsers)
