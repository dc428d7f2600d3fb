"""`lmcache version`"""

from __future__ import annotations

from collections.abc import Sequence

import lmcache_core
from lmcache_core.app.command_line import Parser
from lmcache_core.app.exit_code import ExitCode


def run(arguments: Sequence[str]) -> ExitCode:
    Parser("lmcache version", "Show the version.").parse_all(arguments)
    print(f"lmcache-core {lmcache_core.__version__}")
    return ExitCode.STOPPED
