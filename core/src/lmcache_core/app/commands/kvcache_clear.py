"""`lmcache kvcache clear`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lmcache_core.app.commands import clear
from lmcache_core.app.console.command_line import Parser
from lmcache_core.app.console.exit_code import ExitCode

_PROGRAM: Final = "lmcache kvcache clear"


def parsers() -> list[Parser]:
    return clear.parsers(_PROGRAM)


def run(arguments: Sequence[str]) -> ExitCode:
    return clear.run(arguments, _PROGRAM)
