"""`lmcache pins list`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lmcache_core import Command, CommandContext, CommandParser
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_http.admin_api.chunks import PinsAnswer
from lmcache_tools.admin_client import AdminClient, add_admin_flags
from lmcache_tools.output import output_of
from lmcache_tools.page import Block, Line, Table


def parsers() -> list[CommandParser]:
    parser = CommandParser("lmcache pins list", "Show what is pinned in a running server's L1.")
    add_admin_flags(parser)
    return [parser]


def run(arguments: Sequence[str], context: CommandContext) -> ExitCode:
    given = parsers()[0].parse_all(arguments)
    client = AdminClient.of(given)
    answer = client.ask("GET", "/cache/pins")
    found = client.read(answer, PinsAnswer)
    output_of(given).show(answer, lambda: _page(found))
    return ExitCode.STOPPED


def _page(found: PinsAnswer) -> list[Block]:
    rows = [
        (
            pin.name,
            pin.model_name,
            " ".join(filter(None, (pin.identity, pin.variant))) or "-",
            pin.cache_salt,
            str(pin.objects),
            str(pin.bytes),
            "-" if pin.expires_in_seconds is None else f"{pin.expires_in_seconds:.0f}",
        )
        for pin in found.pins
    ]
    return [
        Table(("NAME", "MODEL", "IDENTITY", "SALT", "OBJECTS", "BYTES", "ENDS IN S"), rows),
        Line(f"{found.pinned_bytes} of at most {found.pinned_bytes_max} bytes are pinned"),
    ]


COMMAND: Final = Command(run, parsers)
