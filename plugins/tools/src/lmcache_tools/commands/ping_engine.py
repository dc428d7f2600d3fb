"""`lmcache ping engine`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lmcache_core import Command, CommandContext, CommandParser
from lmcache_core.app.commands.ping import add_ping_flags, check_ping_flags, measure, show_pings
from lmcache_core.app.console.command_output import add_output_flags
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_tools.engine_http import EngineHttp

_URL: Final = "http://localhost:8000"


def parsers() -> list[CommandParser]:
    parser = CommandParser(
        "lmcache ping engine", "Ask whether an inference engine's HTTP server answers, and how fast."
    )
    parser.add_argument("--url", default=_URL, help=f"its HTTP server (default: {_URL})")
    add_ping_flags(parser)
    add_output_flags(parser)
    return [parser]


def run(arguments: Sequence[str], context: CommandContext) -> ExitCode:
    """Exit code 0 when it answers in time, 1 when not."""
    given = parsers()[0].parse_all(arguments)
    check_ping_flags(given)
    engine = EngineHttp(given.url, given.timeout_seconds)
    return show_pings([measure("engine", engine.url, given.count, engine.health)], given)


COMMAND: Final = Command(run, parsers)
