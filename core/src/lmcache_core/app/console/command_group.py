"""Commands of commands, such as `lmcache quota set`.  Plugins may add words to a group (`contracts.command.Command`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING

from lmcache_client.errors import ConfigError
from lmcache_core.app.console.command_line import Parser
from lmcache_core.app.console.core_commands import CORE_GROUPS
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_core.model.spelling import nearest

if TYPE_CHECKING:
    from lmcache_core.app.console.plugin_commands import AddedWords


class CommandGroup:
    """`lmcache GROUP WORD ...` is module `app.commands.GROUP_WORD`, imported when it is asked for, so that each costs only
    what it needs.  A group without words of core's is a command itself, `app.commands.GROUP`."""

    def __init__(self, name: str) -> None:
        """One of CORE_GROUPS."""
        self._name = name
        self._commands = CORE_GROUPS[name]

    def run(self, arguments: Sequence[str]) -> int:
        if not self._commands and (not arguments or arguments[0].startswith("-")):
            own: ExitCode = self._module().run(arguments)
            return own
        if not arguments or arguments[0] in ("-h", "--help"):
            print("\n".join(self._usage()))
            return ExitCode.STOPPED if arguments else ExitCode.USAGE
        word = arguments[0]
        if word in self._commands:
            done: ExitCode = self._module(word).run(arguments[1:])
            return done
        return self._added().run(word, arguments[1:])

    def parsers(self) -> list[Parser]:
        """Those of all of them."""
        return [parser for word in self._commands or ("",) for parser in self._module(word).parsers()]

    def _added(self) -> AddedWords:
        # here, so that core's own words do not pay for what looks at plugins
        from lmcache_core.app.console.plugin_commands import added_words

        return added_words(self._name)

    def _module(self, word: str = "") -> ModuleType:
        return import_module(f"lmcache_core.app.commands.{self._name}{word and '_'}{word}")

    def _usage(self) -> list[str]:
        added = self._added()
        return group_usage(self._name, {**self._commands, **added.words}, added.missing)


def group_usage(group: str, words: Mapping[str, str], missing: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """Lines of `lmcache GROUP --help`: what each word does, and which distribution has one that is not there."""
    width = max(map(len, (*words, *missing)))
    lines = [f"  {word:<{width}}  {about}" for word, about in words.items()]
    lines += [f"  {word:<{width}}  (pip install {distribution})" for word, distribution in missing.items()]
    return [f"usage: lmcache {group} COMMAND ...", "", *lines, "", f"`lmcache {group} COMMAND --help` says more."]


def unknown_word(group: str, word: str, known: Collection[str], missing: Mapping[str, str]) -> ConfigError:
    """`missing`: distributions that would add a word, by that word."""
    meant = nearest(word, [*known, *missing])
    remedy = f"did you mean '{group} {meant}'?" if meant else f"known: {', '.join(known)}"
    remedy += f" (pip install {missing[meant]})" if meant and meant in missing else ""
    return ConfigError(f"no command is called '{group} {word}'; {remedy}")
