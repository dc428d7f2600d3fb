"""The `lmcache` command.

A command is a module of `app.commands`, imported when it is asked for, so that each costs only what it needs; plugins
are looked at only for a name that is none of core's, and for `lmcache --help`.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

from lmcache_core.app.core_commands import CORE_COMMANDS
from lmcache_core.app.exit_code import ExitCode, exit_code
from lmcache_core.model.errors import ConfigError, LMCacheError

_HELP: Final = ("-h", "--help", "help")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.  What the user can mend is one line on standard error."""
    # else pydantic reads the metadata of everything that is installed, and what is damaged there would end us
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")
    try:
        return _run(list(sys.argv[1:] if arguments is None else arguments))
    except LMCacheError as error:
        logging.getLogger(__name__).debug("why the command failed", exc_info=True)
        print(f"lmcache: {error}", file=sys.stderr)
        return exit_code(error)
    except KeyboardInterrupt:
        return ExitCode.FAILED
    except BrokenPipeError:  # whoever read standard output has seen enough, as in `lmcache plugins list | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILED
    except Exception:  # the top of the main thread: an own bug, shown whole
        logging.getLogger(__name__).critical("unexpected failure", exc_info=True)
        return ExitCode.FAILED


def _run(arguments: list[str]) -> int:
    name = "version" if arguments[:1] == ["--version"] else "".join(arguments[:1])
    if name in CORE_COMMANDS:
        command = import_module(f"lmcache_core.app.commands.{name}")
        done: ExitCode = command.run(arguments[1:])
        return done
    return _run_beyond_core(arguments)


def _run_beyond_core(arguments: list[str]) -> int:
    # here, so that core's own commands do not pay for what looks at plugins
    from lmcache_core.app.plugin_commands import plugin_commands, run_plugin_command
    from lmcache_core.app.plugin_selection import leading_selection

    selection, rest = leading_selection(arguments)
    if not rest or rest[0] in _HELP:
        print(_usage(plugin_commands(selection)))
        return ExitCode.STOPPED if rest else ExitCode.USAGE
    if rest[0] in CORE_COMMANDS:
        raise ConfigError(f"{arguments[0]}: give it behind the command: lmcache {rest[0]} ... {arguments[0]}")
    return run_plugin_command(rest[0], rest[1:], selection)


def _usage(added: Sequence[tuple[str, str]]) -> str:
    own = list(CORE_COMMANDS.items())
    width = max(len(name) for name, _ in (*own, *added))
    lines = [f"  {name:<{width}}  {about}" for name, about in own]
    if added:
        lines += ["", "of plugins:", *(f"  {name:<{width}}  {about}" for name, about in added)]
    return "\n".join(["usage: lmcache COMMAND ...", "", *lines, "", "`lmcache COMMAND --help` says more."])
