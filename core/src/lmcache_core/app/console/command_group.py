"""Commands of commands, such as `lmcache quota set`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from types import ModuleType

from lmcache_core.app.console.command_line import Parser
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_core.model.errors import ConfigError
from lmcache_core.model.spelling import nearest


class CommandGroup:
    """`lmcache GROUP WORD ...` is module `app.commands.GROUP_WORD`, imported when it is asked for, so that each costs only
    what it needs."""

    def __init__(self, name: str, commands: Mapping[str, str]) -> None:
        """`commands` says what each word does."""
        self._name = name
        self._commands = dict(commands)

    def run(self, arguments: Sequence[str]) -> ExitCode:
        if not arguments or arguments[0] in ("-h", "--help"):
            print("\n".join(self._usage()))
            return ExitCode.STOPPED if arguments else ExitCode.USAGE
        word = arguments[0]
        if word not in self._commands:
            meant = nearest(word, self._commands)
            remedy = f"did you mean '{self._name} {meant}'?" if meant else f"known: {', '.join(self._commands)}"
            raise ConfigError(f"no command is called '{self._name} {word}'; {remedy}")
        done: ExitCode = self._module(word).run(arguments[1:])
        return done

    def parsers(self) -> list[Parser]:
        """Those of all of them."""
        return [parser for word in self._commands for parser in self._module(word).parsers()]

    def _module(self, word: str) -> ModuleType:
        return import_module(f"lmcache_core.app.commands.{self._name}_{word}".replace("-", "_"))

    def _usage(self) -> list[str]:
        width = max(map(len, self._commands))
        lines = [f"  {word:<{width}}  {about}" for word, about in self._commands.items()]
        more = f"`lmcache {self._name} COMMAND --help` says more."
        return [f"usage: lmcache {self._name} COMMAND ...", "", *lines, "", more]
