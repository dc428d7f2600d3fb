"""`lmcache pins remove`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lmcache_core import Command, CommandContext, CommandParser
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_http.admin_api.chunks import PinAnswer
from lmcache_tools.admin_client import AdminClient, add_admin_flags
from lmcache_tools.output import output_of
from lmcache_tools.page import Line


def parsers() -> list[CommandParser]:
    parser = CommandParser(
        "lmcache pins remove", "Let a pin of a running server go: what it held may be evicted again."
    )
    parser.add_argument("name", help="the pin's name")
    add_admin_flags(parser)
    return [parser]


def run(arguments: Sequence[str], context: CommandContext) -> ExitCode:
    given = parsers()[0].parse_all(arguments)
    client = AdminClient.of(given)
    answer = client.ask("POST", "/cache/unpin", {"name": given.name})
    pin = client.read(answer, PinAnswer)
    output_of(given).show(answer, lambda: [Line(f"pin '{pin.name}' released {pin.objects} objects")])
    return ExitCode.STOPPED


COMMAND: Final = Command(run, parsers)
