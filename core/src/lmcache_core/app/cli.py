"""The `lmcache` command.

A command is a module of `app.commands`, imported when it is asked for, so that each costs only what it needs.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

from lmcache_core.app.exit_code import ExitCode, exit_code
from lmcache_core.model.errors import ConfigError, LMCacheError
from lmcache_core.model.spelling import nearest

COMMANDS: Final = {
    "server": "run a cache server",
    "ping": "ask a server's engine port whether it answers",
    "status": "show the state of a running server",
    "plugins": "show which plugins are installed",
    "version": "show the version",
}
_HELP: Final = ("-h", "--help", "help")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.  What the user can mend is one line on standard error."""
    try:
        return _run(list(sys.argv[1:] if arguments is None else arguments))
    except LMCacheError as error:
        logging.getLogger(__name__).debug("why the command failed", exc_info=True)
        print(f"lmcache: {error}", file=sys.stderr)
        return exit_code(error)
    except KeyboardInterrupt:
        return ExitCode.FAILED
    except Exception:  # the top of the main thread: an own bug, shown whole
        logging.getLogger(__name__).critical("unexpected failure", exc_info=True)
        return ExitCode.FAILED


def _run(arguments: list[str]) -> ExitCode:
    if not arguments or arguments[0] in _HELP:
        print(_usage())
        return ExitCode.STOPPED if arguments else ExitCode.USAGE
    name = "version" if arguments[0] == "--version" else arguments[0]
    if name not in COMMANDS:
        guess = nearest(name, COMMANDS)
        remedy = f"did you mean '{guess}'?" if guess else f"known: {', '.join(COMMANDS)}"
        raise ConfigError(f"no command is called '{name}'; {remedy}")
    command = import_module(f"lmcache_core.app.commands.{name}")
    done: ExitCode = command.run(arguments[1:])
    return done


def _usage() -> str:
    lines = [f"  {name:<9} {about}" for name, about in COMMANDS.items()]
    return "\n".join(["usage: lmcache COMMAND ...", "", *lines, "", "`lmcache COMMAND --help` says more."])
