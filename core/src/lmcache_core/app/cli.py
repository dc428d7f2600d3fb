"""The `lmcache` command.

A command is a module of `app.commands`, imported when it is asked for, so that each costs only what it needs; plugins
are looked at only for a name that is none of core's, and for `lmcache --help`.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final

from lmcache_client.errors import ConfigError, LMCacheError
from lmcache_core.app.console.command_output import text_table
from lmcache_core.app.console.core_commands import CORE_COMMANDS, CORE_GROUPS
from lmcache_core.app.console.exit_code import ExitCode, exit_code

if TYPE_CHECKING:
    from lmcache_core.contracts.offer import Offer

_HELP: Final = ("-h", "--help")
_EXIT_CODES: Final = "exit-codes"
_MORE: Final = "`lmcache help COMMAND` says more, `lmcache help exit-codes` how commands end."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.  What the user can fix is one line on standard error."""
    # else pydantic reads the metadata of everything that is installed, and what is damaged there would end us
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by who started us, as in `lmcache version >&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - as long as the process
    try:
        try:
            return _run(_spelled_out(list(sys.argv[1:] if arguments is None else arguments)))
        finally:
            sys.stdout.flush()  # here, where a reader that has gone is an error like any other
    except LMCacheError as error:
        logging.getLogger(__name__).debug("why the command failed", exc_info=True)
        print(f"lmcache: {error}", file=sys.stderr)
        return exit_code(error)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:  # the reader of standard output has closed it, as in `lmcache plugins list | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILED
    except Exception:  # the top of the main thread: an own bug, shown whole
        logging.getLogger(__name__).critical("unexpected failure", exc_info=True)
        return ExitCode.FAILED
    finally:
        gc.enable()


def _spelled_out(arguments: list[str]) -> list[str]:
    """`help COMMAND` is `COMMAND --help`, and `--version` is a command like the others."""
    match arguments:
        case ["help", topic] if topic == _EXIT_CODES:
            return arguments
        case ["help", "help", *_]:
            return ["--help"]
        case ["help", *command]:
            return [*command, "--help"]
        case ["--version", *more]:
            return ["version", *more]
    return arguments


def _run(arguments: list[str]) -> int:
    if arguments[:1] == ["help"]:
        print("\n".join(text_table([("CODE", "MEANING"), *((str(int(code)), code.meaning) for code in ExitCode)])))
        return ExitCode.STOPPED
    name = "".join(arguments[:1])
    if name in CORE_COMMANDS:
        # until a server serves: each collection looks at all that was imported so far, a sixth of a start
        gc.disable()
        return _run_core_command(name, arguments[1:])
    return _run_beyond_core(arguments)


def _run_core_command(name: str, arguments: Sequence[str]) -> int:
    """`lmcache NAME WORD ...` is module `app.commands.NAME_WORD`, imported when it is asked for, so that each costs only what
    it needs.  A group without words of core's is a command itself, `app.commands.NAME`."""
    words = CORE_GROUPS.get(name, {})
    word = arguments[0] if arguments else "-"
    module = f"lmcache_core.app.commands.{name}"
    if name not in CORE_GROUPS or (not words and word.startswith("-")):
        done: int = import_module(module).run(arguments)
    elif word in words:
        done = import_module(f"{module}_{word}").run(arguments[1:])
    else:  # here, so that core's own words do not pay for what looks at plugins
        from lmcache_core.app.console.plugin_commands import run_word_of_plugin

        gc.enable()  # it may run for long
        done = run_word_of_plugin(name, arguments)
    return done


def _run_beyond_core(arguments: list[str]) -> int:
    # here, so that core's own commands do not pay for what looks at plugins
    from lmcache_core.app.console.command_line import leading_selection
    from lmcache_core.app.console.plugin_commands import missing_commands, run_plugin_command

    selection, rest = leading_selection(arguments)
    if not rest or rest[0] in _HELP:
        plugins = selection.load_for_user()
        print(_usage(plugins.offers("command"), missing_commands(plugins)))
        return ExitCode.STOPPED if rest else ExitCode.USAGE
    if rest[0] in CORE_COMMANDS:
        raise ConfigError(f"{arguments[0]}: give it behind the command: lmcache {rest[0]} ... {arguments[0]}")
    if rest[0].startswith("-"):
        raise ConfigError(f"{rest[0]}: give it behind a command: lmcache COMMAND {rest[0]}; see `lmcache --help`")
    if "." in rest[0]:
        raise ConfigError(f"no command is called '{rest[0]}'; groups of commands have a blank: lmcache quota set")
    return run_plugin_command(rest[0], rest[1:], selection)


def _usage(commands: Sequence[Offer], missing: Mapping[str, Sequence[str]]) -> str:
    """`missing`: names of commands that are not installed, by the distribution that has them."""
    groups: dict[str, list[str]] = {}
    for command in commands:
        first, _, word = command.name.partition(".")
        groups.setdefault(first, []).append(word or command.summary)
    own = [(name, "; ".join((about, *groups.get(name, ())))) for name, about in CORE_COMMANDS.items()]
    added = [(name, ", ".join(words)) for name, words in groups.items() if name not in CORE_COMMANDS]
    width = max(len(name) for name, _ in (*own, *added))
    lines = [f"  {name:<{width}}  {about}" for name, about in own]
    if added:
        lines += ["", "of plugins:", *(f"  {name:<{width}}  {about}" for name, about in added)]
    if missing:
        lines += ["", "not installed:"]
        lines += [f"  pip install {owner}: {', '.join(names)}" for owner, names in missing.items()]
    return "\n".join(["usage: lmcache COMMAND ...", "", *lines, "", _MORE])
