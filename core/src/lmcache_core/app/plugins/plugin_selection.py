"""Which plugins a command considers: `--plugin`, `--no-plugin`, `--safe-mode`, and their variables.

`lmcache server` has the same three among its settings; this is for the commands that have no settings.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lmcache_client.errors import ConfigError
from lmcache_core.app.console.command_line import Parser
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.plugins.loading import load_plugins

FLAGS = ("--plugin", "--no-plugin", "--safe-mode", "--no-safe-mode")
_WITH_NAME = FLAGS[:2]
_YES = ("1", "true", "yes", "on", "t", "y")
_NO = ("", "0", "false", "no", "off", "f", "n")


@dataclass(frozen=True, slots=True)
class PluginSelection:
    """What was asked for; empty means every plugin that is installed."""

    selected: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()
    safe_mode: bool = False

    def load(self, *, strict: bool = False) -> LoadedPlugins:
        """As `load_plugins`.  Raises ConfigError for names that cannot be had."""
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


def command_selection(environment: Mapping[str, str] = os.environ) -> PluginSelection:
    """Whose commands there are: every plugin's but those that `LMCACHE_NO_PLUGINS` names.  `LMCACHE_PLUGINS` and
    `LMCACHE_SAFE_MODE` say what a server uses, and clients of that server need their commands.  Raises ConfigError."""
    return PluginSelection(blocked=selection_from(environment).blocked)


def leading_selection(arguments: Sequence[str]) -> tuple[PluginSelection, list[str]]:
    """The flags in front of a command's name, or else `command_selection`; and what follows them.  Raises ConfigError."""
    end = 0
    while end < len(arguments) and arguments[end].partition("=")[0] in FLAGS:
        end += 2 if arguments[end] in _WITH_NAME else 1
    parser = Parser("lmcache", "")
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
