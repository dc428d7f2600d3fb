"""`lmcache adapters list`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lmcache_core import Command, CommandContext, CommandParser
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_http.admin_api.changes import AdapterStates
from lmcache_tools.adapter_page import ADAPTERS, adapter_table
from lmcache_tools.admin_client import AdminClient, add_admin_flags
from lmcache_tools.output import output_of


def parsers() -> list[CommandParser]:
    parser = CommandParser("lmcache adapters list", "Show the L2 adapters of a running server, and what each is doing.")
    add_admin_flags(parser)
    return [parser]


def run(arguments: Sequence[str], context: CommandContext) -> ExitCode:
    given = parsers()[0].parse_all(arguments)
    client = AdminClient.of(given)
    answer = client.ask("GET", ADAPTERS)
    found = client.read(answer, AdapterStates)
    output_of(given).show(answer, lambda: [adapter_table(found.adapters)])
    return ExitCode.STOPPED


COMMAND: Final = Command(run, parsers)
