"""`lmcache version`"""

from __future__ import annotations

from collections.abc import Sequence

import lmcache_core
from lmcache_core.app.console.command_line import CommandParser
from lmcache_core.app.console.command_output import CommandOutput, add_output_flags
from lmcache_core.app.console.exit_code import ExitCode


def parsers() -> list[CommandParser]:
    parser = CommandParser("lmcache version", "Show the version.")
    add_output_flags(parser)
    return [parser]


def run(arguments: Sequence[str]) -> ExitCode:
    given = parsers()[0].parse_all(arguments)
    version = lmcache_core.__version__
    CommandOutput.of(given).show({"lmcache-core": version}, f"lmcache-core {version}")
    return ExitCode.STOPPED
