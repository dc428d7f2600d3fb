"""`lmcache clear`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lmcache_core import Command, CommandContext, CommandParser
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_http.admin_api.quotas import Cleared
from lmcache_tools.admin_client import AdminClient, add_admin_flags
from lmcache_tools.output import output_of
from lmcache_tools.page import Line


def parsers(program: str = "lmcache clear") -> list[CommandParser]:
    parser = CommandParser(program, "Drop what a running server has in L1; what L2 has stays there.")
    parser.add_argument(
        "--force", action="store_true", help="what is held, too: it is hit no more, and leaves with its reader"
    )
    add_admin_flags(parser)
    return [parser]


def run(arguments: Sequence[str], context: CommandContext, program: str = "lmcache clear") -> ExitCode:
    given = parsers(program)[0].parse_all(arguments)
    client = AdminClient.of(given)
    answer = client.ask("POST", "/cache/clear", {"force": given.force})
    cleared = client.read(answer, Cleared).cleared
    left = f"; {cleared.objects_left} are there: in use, or stored since" if cleared.objects_left else ""
    output_of(given).show(answer, lambda: [Line(f"dropped {cleared.objects} objects of L1{left}")])
    return ExitCode.STOPPED


COMMAND: Final = Command(run, parsers)
_KVCACHE: Final = "lmcache kvcache clear"
OF_KVCACHE: Final = Command(lambda arguments, context: run(arguments, context, _KVCACHE), lambda: parsers(_KVCACHE))
"""For who knows the public server's command line."""
