"""The flags of `lmcache server`, generated from its settings and those of plugins."""

from __future__ import annotations

import argparse
from collections.abc import Container, Sequence
from typing import Any, Final, NoReturn

from pydantic.fields import FieldInfo

from lmcache_client.errors import ConfigError
from lmcache_core.app.configuration import setting_groups
from lmcache_core.app.console.command_line import Parser
from lmcache_core.app.plugins.catalogue import catalogue
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.plugins.plugin_settings import flag_of
from lmcache_core.app.setting_text import default_text

_FLAGS_OF_OTHERS: Final = ("--coordinator-", "--p2p-")
"""Beginnings of flags of the public server, for what neither core nor a plugin of this project has."""
_OBJECTS: Final = ("l2_adapter", "offer_settings", "quota")


class ServerFlags(Parser):
    """One flag for each setting of core and of `plugins`, in their groups."""

    def __init__(
        self,
        plugins: LoadedPlugins | None = None,
        program: str = "lmcache server",
        about: str = "Run a cache server until it is told to stop.",
        without: Container[str] = (),
    ) -> None:
        """For a command that takes what a server takes, `without` the settings that it asks for in its own way."""
        super().__init__(program, about, f"{program} [FLAG ...]")
        self._plugins = plugins
        self.titles: list[str] = []
        """Headings of `--help` with settings below them."""
        self._names: set[str] = set()
        for group in setting_groups(plugins):
            section = self.add_argument_group(group.title)
            self.titles.append(group.title)
            for name, field in group.model.model_fields.items():
                self._names.add(name)
                if name not in without:
                    _add(section, name, field)

    def given(self, arguments: Sequence[str]) -> dict[str, Any]:
        """What is on the command line, by field name and unchecked.  Raises ConfigError for anything else there."""
        return self.settings_in(self.parse_all(arguments))

    def settings_in(self, given: argparse.Namespace) -> dict[str, Any]:
        """The settings among what was given, by field name and unchecked."""
        return {name: value for name, value in vars(given).items() if name in self._names}

    def refuse(self, argument: str) -> NoReturn:
        flag = argument.partition("=")[0]
        name = catalogue().setting_of_flag(flag)
        if name and self._plugins and (missing := self._plugins.missing_setting(name, flag)):
            raise ConfigError(f"{missing.text}; leave out one of them" if missing.left_out else missing.text)
        if flag.startswith(_FLAGS_OF_OTHERS):
            raise ConfigError(
                f"{flag} is a flag of the public LMCache server, for something that this server does not have"
            )
        super().refuse(argument)


def _add(section: argparse._ArgumentGroup, name: str, field: FieldInfo) -> None:
    flag, default = flag_of(name, field), default_text(field)
    text = f"{field.description} (default: {default})" if default else str(field.description)
    how: dict[str, Any] = {"metavar": _metavar(name, field)}
    if field.annotation is bool:
        how = {"action": argparse.BooleanOptionalAction}
    elif isinstance(field.default, tuple):
        how["action"] = "append"
    # flags that are not given leave nothing behind, so that the next source is asked
    section.add_argument(flag, dest=name, default=argparse.SUPPRESS, help=text.replace("%", "%%"), **how)


def _metavar(name: str, field: FieldInfo) -> str:
    if name in _OBJECTS:
        return "JSON"
    extra = field.json_schema_extra
    if isinstance(extra, dict) and "metavar" in extra:
        return str(extra["metavar"])
    if isinstance(field.default, tuple):
        return "NAME"
    words = {"int": "N", "float": "N", "Annotated": "N", "Literal": "WORD"}
    kind = str(field.annotation)
    return next((metavar for word, metavar in words.items() if word in kind), name.rpartition("_")[2].upper())
