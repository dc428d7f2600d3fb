"""`lmcache plugins`"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Final

from lmcache_core.app.exit_code import ExitCode
from lmcache_core.model.errors import ConfigError
from lmcache_core.model.spelling import nearest

COMMANDS: Final = {
    "list": "show which plugins are installed, and what is wrong with any of them",
    "show": "show what something is, its settings and an example",
    "check": "run the laws of its kind against your own disk, bucket or server",
    "new": "start a plugin of your own",
}


def run(arguments: Sequence[str]) -> ExitCode:
    if not arguments or arguments[0] in ("-h", "--help"):
        lines = [f"  {name:<6} {about}" for name, about in COMMANDS.items()]
        print("\n".join(["usage: lmcache plugins COMMAND ...", "", *lines]))
        return ExitCode.STOPPED if arguments else ExitCode.USAGE
    name = arguments[0]
    if name not in COMMANDS:
        meant = nearest(name, COMMANDS)
        remedy = f"did you mean 'plugins {meant}'?" if meant else f"known: {', '.join(COMMANDS)}"
        raise ConfigError(f"no command is called 'plugins {name}'; {remedy}")
    # imported when it is asked for, so that each costs only what it needs
    command = import_module(f"lmcache_core.app.commands.plugins_{name}")
    done: ExitCode = command.run(arguments[1:])
    return done
