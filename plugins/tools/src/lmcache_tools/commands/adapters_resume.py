"""`lmcache adapters resume`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lmcache_core import Command, CommandContext, CommandParser
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_http.admin_api.changes import AdapterState
from lmcache_tools.adapter_page import adapter_page, adapter_path, add_name
from lmcache_tools.admin_client import AdminClient, add_admin_flags
from lmcache_tools.output import output_of


def parsers() -> list[CommandParser]:
    parser = CommandParser("lmcache adapters resume", "Take a drain back: new stores go to the L2 adapter again.")
    add_name(parser)
    add_admin_flags(parser)
    return [parser]


def run(arguments: Sequence[str], context: CommandContext) -> ExitCode:
    given = parsers()[0].parse_all(arguments)
    client = AdminClient.of(given)
    answer = client.ask("POST", adapter_path(given.name, "/resume"))
    state = client.read(answer, AdapterState)
    output_of(given).show(answer, lambda: adapter_page(f"adapter '{state.name}' takes stores", state))
    return ExitCode.STOPPED


COMMAND: Final = Command(run, parsers)
