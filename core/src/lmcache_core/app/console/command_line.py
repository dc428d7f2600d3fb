"""Command lines: their mistakes are one readable line, and `--plugin`, `--no-plugin` and `--safe-mode`, their variables and
their keys of a file say which plugins a command considers.

`lmcache server` has the same three among its settings.  It asks here first, because plugins bring settings, too.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from lmcache_client.errors import ConfigError
from lmcache_core.app.config_file import read_config_file
from lmcache_core.model.spelling import nearest

if TYPE_CHECKING:
    from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins

ENV_PREFIX: Final = "LMCACHE_"
_KUBERNETES_ADDRESSES: Final = ("tcp://", "udp://", "sctp://")
FLAGS = ("--plugin", "--no-plugin", "--safe-mode", "--no-safe-mode")
_WITH_NAME = FLAGS[:2]
_YES = ("1", "true", "yes", "on", "t", "y")
_NO = ("", "0", "false", "no", "off", "f", "n")


class CommandParser(argparse.ArgumentParser):
    """An argument parser that raises ConfigError, one readable line, where argparse would print its usage and exit."""

    def __init__(self, program: str, about: str, usage: str | None = None, *, add_help: bool = True) -> None:
        """`program` is the whole command, such as "lmcache trace replay".  `--help` shows an `about` of several lines as it
        is written."""
        formatter = argparse.RawDescriptionHelpFormatter if "\n" in about else argparse.HelpFormatter
        super().__init__(program, usage, about, formatter_class=formatter, add_help=add_help, allow_abbrev=False)
        self.remedy = f"see `{program} --help`"
        """What to do about a flag that nothing takes, and that is like none of those that there are."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message.removeprefix("argument "))

    def parse_all(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse, or raise ConfigError for the first argument that nothing takes, with the flag that was probably meant."""
        parsed, unknown = self.parse_known_args(list(arguments))
        if unknown:
            self.refuse(unknown[0])
        return parsed

    def refuse(self, argument: str) -> NoReturn:
        """Raise ConfigError for an argument that nothing takes."""
        flag = argument.partition("=")[0]
        if not flag.startswith("-"):
            raise ConfigError(f"'{flag}' is not expected here; see `{self.prog} --help`")
        guess = nearest(flag.lstrip("-"), [known.lstrip("-") for known in self._option_string_actions])
        raise ConfigError(f"no flag is called {flag}; " + (f"did you mean --{guess}?" if guess else self.remedy))


class PluginSelection(NamedTuple):
    """What was asked for; empty means every plugin that is installed."""

    selected: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()
    safe_mode: bool = False

    def load(self, *, strict: bool = False) -> LoadedPlugins:
        """As `load_plugins`.  Raises ConfigError for names that are not available."""
        # here, because `lmcache version` and `lmcache ping` load no plugin
        from lmcache_core.app.plugins.loading import load_plugins

        return load_plugins(self.selected, self.blocked, safe_mode=self.safe_mode, strict=strict)

    def load_for_user(self) -> LoadedPlugins:
        """As `load`, for a command that shows rows and no log: what the flags ask for in vain is said on standard error."""
        plugins = self.load()
        for line in plugins.advice:
            print(f"lmcache: warning: {line}", file=sys.stderr)
        return plugins

    def variables(self) -> dict[str, str]:
        """For the environment of a child that is to consider the same plugins."""
        return {
            "LMCACHE_PLUGINS": ",".join(self.selected),
            "LMCACHE_NO_PLUGINS": ",".join(self.blocked),
            "LMCACHE_SAFE_MODE": "1" if self.safe_mode else "0",
        }


def add_selection_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plugin", action="append", metavar="NAME", help="consider only this plugin; repeatable")
    parser.add_argument("--no-plugin", action="append", metavar="NAME", help="never load this plugin; repeatable")
    parser.add_argument(
        "--safe-mode", action=argparse.BooleanOptionalAction, default=None, help="consider core's own plugin alone"
    )


def selection_of(given: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> PluginSelection:
    """The flags, and the environment where a flag is not given.  Raises ConfigError."""
    asked = selection_from(environment)
    return PluginSelection(
        asked.selected if given.plugin is None else tuple(given.plugin),
        asked.blocked if given.no_plugin is None else tuple(given.no_plugin),
        asked.safe_mode if given.safe_mode is None else given.safe_mode,
    )


def server_selection(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> PluginSelection:
    """What a server with these arguments considers: the flags, then the environment, then the `--config` file, setting by
    setting.  Raises ConfigError."""
    parser = CommandParser("lmcache", "", add_help=False)
    add_selection_flags(parser)
    parser.add_argument("--config")
    given, _ = parser.parse_known_args(list(arguments))
    variables = variables_of_settings(environment)
    path = given.config or variables.get(f"{ENV_PREFIX}CONFIG")
    file = read_config_file(Path(path)) if path else {}
    asked = selection_from(variables)
    safe_mode = asked.safe_mode if f"{ENV_PREFIX}SAFE_MODE" in variables else file.get("safe_mode") is True
    return PluginSelection(
        first_names(given.plugin, asked.selected, file.get("plugins")),
        first_names(given.no_plugin, asked.blocked, file.get("no_plugins")),
        safe_mode if given.safe_mode is None else given.safe_mode,
    )


def variables_of_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that give a setting, by name in upper case.  An empty one does not, and Kubernetes puts an address into
    LMCACHE_PORT where a service is called `lmcache`."""
    given = {name.upper(): value for name, value in environment.items() if value}
    return {
        name: value
        for name, value in given.items()
        if name.startswith(ENV_PREFIX) and not (name == f"{ENV_PREFIX}PORT" and value.startswith(_KUBERNETES_ADDRESSES))
    }


def first_names(flags: Sequence[str] | None, variable: Sequence[str], key: Any) -> tuple[str, ...]:
    """What the strongest source says.  A key of the wrong type is none here: `read_settings` refuses it."""
    if flags is not None or variable:
        return tuple(variable if flags is None else flags)
    names = _names(key) if isinstance(key, str) else key if isinstance(key, list | tuple) else ()
    return tuple(name for name in names if isinstance(name, str))


def command_selection(environment: Mapping[str, str] = os.environ) -> PluginSelection:
    """Whose commands there are: every plugin's but those that `LMCACHE_NO_PLUGINS` names.  `LMCACHE_PLUGINS` and
    `LMCACHE_SAFE_MODE` say what a server uses, and clients of that server need their commands.  Raises ConfigError."""
    return PluginSelection(blocked=selection_from(environment).blocked)


def leading_selection(arguments: Sequence[str]) -> tuple[PluginSelection, list[str]]:
    """The flags in front of a command's name, or else `command_selection`; and what follows them.  Raises ConfigError."""
    end = 0
    while end < len(arguments) and arguments[end].partition("=")[0] in FLAGS:
        end += 2 if arguments[end] in _WITH_NAME else 1
    parser = CommandParser("lmcache", "")
    add_selection_flags(parser)
    given = parser.parse_all(arguments[:end])
    return selection_of(given) if end else command_selection(), list(arguments[end:])


def selection_from(environment: Mapping[str, str]) -> PluginSelection:
    """`LMCACHE_PLUGINS`, `LMCACHE_NO_PLUGINS` and `LMCACHE_SAFE_MODE`.  Raises ConfigError."""
    word = environment.get("LMCACHE_SAFE_MODE", "").strip().lower()
    if word not in (*_YES, *_NO):
        raise ConfigError(f"LMCACHE_SAFE_MODE is '{word[:80]}': must be true or false")
    selected, blocked = (
        _names(environment.get(variable, "")) for variable in ("LMCACHE_PLUGINS", "LMCACHE_NO_PLUGINS")
    )
    return PluginSelection(selected, blocked, word in _YES)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for part in text.split(",") if (name := part.strip()))
