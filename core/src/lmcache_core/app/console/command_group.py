"""Commands of commands, such as `lmcache quota set`.  Plugins may add words to a group (`contracts.command.Command`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from lmcache_client.errors import ConfigError
from lmcache_core.app.console.command_line import Parser
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_core.model.spelling import nearest

if TYPE_CHECKING:
    from lmcache_core.app.plugins.plugin_commands import AddedWords


class CommandGroup:
    """`lmcache GROUP WORD ...` is module `app.commands.GROUP_WORD`, imported when it is asked for, so that each costs only
    what it needs."""

    def __init__(self, name: str, commands: Mapping[str, str]) -> None:
        """`commands` says what each word does."""
        self._name = name
        self._commands = dict(commands)

    def run(self, arguments: Sequence[str]) -> int:
        if not arguments or arguments[0] in ("-h", "--help"):
            print("\n".join(self._usage()))
            return ExitCode.STOPPED if arguments else ExitCode.USAGE
        word = arguments[0]
        if word in self._commands:
            done: ExitCode = self._module(word).run(arguments[1:])
            return done
        added = self._added()
        if word in added.words:
            return added.run(word, arguments[1:])
        if distribution := added.missing.get(word):
            raise ConfigError(f"'lmcache {self._name} {word}' is not installed: pip install {distribution}")
        known = [*self._commands, *added.words]
        meant = nearest(word, [*known, *added.missing])
        remedy = f"did you mean '{self._name} {meant}'?" if meant else f"known: {', '.join(known)}"
        raise ConfigError(f"no command is called '{self._name} {word}'; {remedy}")

    def parsers(self) -> list[Parser]:
        """Those of all of them."""
        return [parser for word in self._commands for parser in self._module(word).parsers()]

    def has(self, word: str) -> bool:
        """Is this one of core's own words?"""
        return word in self._commands

    def _added(self) -> AddedWords:
        # here, so that core's own words do not pay for what looks at plugins
        from lmcache_core.app.plugins.plugin_commands import added_words

        return added_words(self._name)

    def _module(self, word: str) -> ModuleType:
        return import_module(f"lmcache_core.app.commands.{self._name}_{word}".replace("-", "_"))

    def _usage(self) -> list[str]:
        added = self._added()
        width = max(map(len, (*self._commands, *added.words)))
        lines = [f"  {word:<{width}}  {about}" for word, about in {**self._commands, **added.words}.items()]
        lines += [f"  {word}: pip install {distribution}" for word, distribution in added.missing.items()]
        more = f"`lmcache {self._name} COMMAND --help` says more."
        return [f"usage: lmcache {self._name} COMMAND ...", "", *lines, "", more]
