"""The flags of `lmcache server`, generated from its settings."""

from __future__ import annotations

import argparse
from collections.abc import Container, Sequence
from typing import Any, NoReturn

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from lmcache_client.errors import ConfigError
from lmcache_core.app.configuration import flag_of
from lmcache_core.app.console.command_line import Parser
from lmcache_core.app.plugins.known_names import FLAGS_OF_OTHERS
from lmcache_core.app.setting_text import default_text
from lmcache_core.app.settings import GROUPS, ServerSettings


class ServerFlags(Parser):
    """One flag for each setting, in the groups of the settings module."""

    def __init__(
        self,
        program: str = "lmcache server",
        about: str = "Run a cache server until it is told to stop.",
        without: Container[str] = (),
    ) -> None:
        """For a command that takes what a server takes, `without` the settings that it asks for in its own way."""
        super().__init__(program, about, f"{program} [FLAG ...]")
        for group in GROUPS:
            section = self.add_argument_group(str(group.__doc__))
            for name, field in group_fields(group):
                if name not in without:
                    _add(section, name, field)

    def given(self, arguments: Sequence[str]) -> dict[str, Any]:
        """What is on the command line, by field name and unchecked.  Raises ConfigError for anything else there."""
        return server_flags(self.parse_all(arguments))

    def refuse(self, argument: str) -> NoReturn:
        flag = argument.partition("=")[0]
        if flag.startswith(FLAGS_OF_OTHERS):
            raise ConfigError(
                f"{flag} is a flag of the public LMCache server, for something that this server does not have"
            )
        super().refuse(argument)


def server_flags(given: argparse.Namespace) -> dict[str, Any]:
    """The settings of a server among what was given, by field name and unchecked."""
    return {name: value for name, value in vars(given).items() if name in ServerSettings.model_fields}


def group_fields(group: type[BaseModel]) -> list[tuple[str, FieldInfo]]:
    """The settings of one group, in their order."""
    return [(name, ServerSettings.model_fields[name]) for name in group.model_fields]


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
    if name in ("l2_adapter", "offer_settings", "quota"):
        return "JSON"
    if name in ("config", "runtime_plugin_locations"):
        return "PATH"
    if isinstance(field.default, tuple):
        return "NAME"
    words = {"int": "N", "float": "N", "Annotated": "N", "Literal": "WORD"}
    kind = str(field.annotation)
    return next((metavar for word, metavar in words.items() if word in kind), name.rpartition("_")[2].upper())
