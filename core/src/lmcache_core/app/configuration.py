"""From flags, environment and file to `ServerSettings`, or to one line that says what is wrong with which of them.

The command line wins over the environment, the environment over the file, the file over the default.  Core's settings and
those of each plugin's groups are validated by models of their own.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from lmcache_client.errors import ConfigError
from lmcache_core.app.config_file import read_config_file
from lmcache_core.app.console.command_line import ENV_PREFIX, CommandParser, variables_of_settings
from lmcache_core.app.plugins.catalogue import catalogue
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.setting_text import default_text
from lmcache_core.app.settings import (
    GROUPS,
    GroupValues,
    LoadedGroup,
    MissingSetting,
    ServerSettings,
    SettingSource,
    flag_of,
    is_loopback,
    variable_of,
)
from lmcache_core.contracts.settings import is_secret
from lmcache_core.model.spelling import nearest

_SHOWN_FAULTS: Final = 3
_HIDDEN: Final = frozenset({"l2_adapter", "eviction_policy", "l2_store_policy", "l2_prefetch_policy", "offer_settings"})
"""Values that may hold secrets and are not repeated in messages."""
_OTHER_VARIABLES: Final = frozenset(
    {
        "LMCACHE_CHECK",
        "LMCACHE_CHECK_REPORT",
        "LMCACHE_CONFIG_FILE",
        "LMCACHE_DISABLE_BANNER",
        "LMCACHE_HTTP_TOKEN",
        "LMCACHE_LOG_FORMAT",
        "LMCACHE_MP_TRANSFER_MODE",
        "LMCACHE_TRACE_HOOKS",
        "LMCACHE_TRACK_USAGE",
        "LMCACHE_USE_EXPERIMENTAL",
        "LMCACHE_URL",
        "LMCACHE_USE_UPSTREAM_MP",
    }
)
"""Variables that begin like settings and are switches of ours, or of libraries in an engine."""
_KUBERNETES_VARIABLE: Final = r"LMCACHE_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)"


def _texts_of(model: type[Any], variables: Mapping[str, str]) -> dict[str, Any]:
    """The share of a model, by field name and as text, which its validators parse.  `variables`: by name in upper case."""
    if not any(variable_of(name) in variables for name in model.model_fields):
        return {}
    # here, because its import, with an event loop and a parser of command lines, is a quarter of a start
    from pydantic_settings import EnvSettingsSource

    source = EnvSettingsSource(model, case_sensitive=False, env_prefix=ENV_PREFIX)
    source.env_vars = {name.lower(): text for name, text in variables.items()}
    texts = {name: source.get_field_value(field, name)[0] for name, field in model.model_fields.items()}
    return {name: text for name, text in texts.items() if text is not None}


class _Given(NamedTuple):
    """What a command was given, unchecked."""

    flags: Mapping[str, Any]
    """By field name."""
    variables: Mapping[str, str]
    """Those that give a setting, by name in upper case."""
    path: Path | None
    """The `--config` file."""
    file: Mapping[str, Any]
    """Its keys and values, or those of a mapping that a program gives."""

    def values_of(self, model: type[BaseModel]) -> dict[str, Any]:
        """The share of a model."""
        given = {**self.file, **_texts_of(model, self.variables), **self.flags}
        return {name: given[name] for name in model.model_fields if name in given}

    def source(self, name: str) -> SettingSource:
        """The source of a setting that was given."""
        if name in self.flags:
            return SettingSource.FLAG
        return SettingSource.ENVIRONMENT if variable_of(name) in self.variables else SettingSource.FILE

    def origin(self, name: str, field: FieldInfo) -> str:
        """The flag, the variable or the key that gave it, for messages."""
        match self.source(name):
            case SettingSource.FLAG:
                return flag_of(name, field)
            case SettingSource.ENVIRONMENT:
                return variable_of(name)
        return f"{self.where}key '{name}'"

    @property
    def where(self) -> str:
        return f"--config {self.path}: " if self.path else ""


def setting_groups(plugins: LoadedPlugins | None = None) -> list[LoadedGroup]:
    """Core's groups, then those of the plugins, in the order of `--help` and of the reference."""
    own = [LoadedGroup(str(group.__doc__), group) for group in GROUPS]
    return [*own, *(plugins.setting_groups() if plugins else ())]


def read_settings(flags: Mapping[str, Any], plugins: LoadedPlugins | None = None) -> ServerSettings:
    """The settings that `flags` (by field name), the environment and the file add up to; those of `plugins` included.

    Raises ConfigError with one line."""
    variables = variables_of_settings(os.environ)
    path = flags.get("config") or variables.get(variable_of("config"))
    file = read_config_file(Path(path)) if path else {}
    return _settings(_Given(flags, variables, Path(path) if path else None, file), plugins)


def settings_of(values: Mapping[str, Any], plugins: LoadedPlugins) -> ServerSettings:
    """Those of a mapping alone: neither the environment nor a file is read.  Raises ConfigError with one line."""
    if "config" in values:
        raise ConfigError("key 'config': a library reads no file by itself; give what is in it")
    return _settings(_Given({}, {}, None, values), plugins)


def _settings(given: _Given, plugins: LoadedPlugins | None) -> ServerSettings:
    groups = plugins.setting_groups() if plugins else ()
    unused = _unused(given, groups, plugins)
    faults: list[str] = []
    settings = _validated(ServerSettings, given, faults)
    added = [(group, _validated(group.model, given, faults)) for group in groups]
    if faults:
        more = len(faults) - _SHOWN_FAULTS
        raise ConfigError("; ".join(faults[:_SHOWN_FAULTS]) + (f"; and {more} more" if more > 0 else ""))
    assert isinstance(settings, ServerSettings)
    names = settings.model_fields_set.union(*(values.model_fields_set for _, values in added if values is not None))
    settings._sources = {name: given.source(name) for name in names}
    settings._unused = tuple(unused)
    settings._added = tuple(GroupValues(group, values) for group, values in added if values is not None)
    return settings


def _unused(given: _Given, groups: Sequence[LoadedGroup], plugins: LoadedPlugins | None) -> list[str]:
    """A line for each variable and key of a plugin that is installed and left out.  Raises ConfigError for those of a plugin
    that is not available, and for a key that no plugin has."""
    known = [*ServerSettings.model_fields, *(name for group in groups for name in group.model.model_fields)]
    unused: list[str] = []
    for name in sorted(given.variables):
        setting = name.removeprefix(ENV_PREFIX).lower()
        if setting not in known and plugins:
            _check_owner(setting, name, plugins, unused)
    for name in given.file:
        if name not in known and not (plugins and _check_owner(name, f"{given.where}key '{name}'", plugins, unused)):
            raise ConfigError(given.where + _no_setting(name, known))
    return unused


def _check_owner(name: str, subject: str, plugins: LoadedPlugins, unused: list[str]) -> bool:
    """Does a plugin that is installed and left out have this setting?  Raises ConfigError where it is not available."""
    if fault := plugins.missing_setting(name, subject):
        if not fault.left_out:
            raise ConfigError(fault.text)
        unused.append(fault.text)
    return fault is not None


def _no_setting(name: str, known: Sequence[str]) -> str:
    guess = nearest(name.replace("-", "_"), known)
    return f"no setting is called '{name}'" + (f"; did you mean '{guess}'?" if guess else "")


def _validated(model: type[BaseModel], given: _Given, faults: list[str]) -> BaseModel | None:
    """The model with its share of what was given; None where that is wrong, which `faults` gets a line for."""
    try:
        return model.model_validate(given.values_of(model))
    except ValidationError as error:
        faults += [_fault(fault, given, model) for fault in error.errors(include_url=False)]
    return None


def _fault(fault: Mapping[str, Any], given: _Given, model: type[BaseModel]) -> str:
    message = str(fault["msg"]).removeprefix("Value error, ")
    if not fault["loc"]:
        return message
    name = str(fault["loc"][0])
    field = model.model_fields[name]
    hidden = name in _HIDDEN or is_secret(field)
    shown = "" if hidden else f" is {str(fault['input'])[:80]!r}"
    return f"{given.origin(name, field)}{shown}: {message[:1].lower()}{message[1:]}"


def advice(settings: ServerSettings, environment: Mapping[str, str]) -> list[str]:
    """Lines to warn with: what is allowed but probably not meant, or meant but dangerous."""
    lines = [*settings.unused, *_unknown_variables(settings, environment)]
    if not (is_loopback(settings.host) or settings.host.startswith("ipc://")):
        lines.append(
            f"--host {settings.host}: engines of other machines can connect, and their protocol has no passwords; "
            "keep the port inside of a trusted network"
        )
    return lines


def _unknown_variables(settings: ServerSettings, environment: Mapping[str, str]) -> Iterator[str]:
    known = [*ServerSettings.model_fields, *(name for each in settings.added for name in each.group.model.model_fields)]
    for name in sorted(environment):
        setting = name.removeprefix(ENV_PREFIX).lower()
        if (
            not name.startswith(ENV_PREFIX)
            or setting in known
            or _is_of_others(name)
            or setting in catalogue().settings
        ):
            continue
        guess = nearest(setting, known)
        yield f"{name} is set, but no setting is called so" + (f"; did you mean {variable_of(guess)}?" if guess else "")


def _is_of_others(name: str) -> bool:
    """Is `name` a switch of ours for finding faults, an engine-side library's, or one of Kubernetes' links to services?"""
    return name in _OTHER_VARIABLES or re.fullmatch(_KUBERNETES_VARIABLE, name) is not None


_FLAGS_OF_OTHERS: Final = ("--coordinator-", "--p2p-")
"""Beginnings of flags of the public server, for what neither core nor a plugin of this project has."""
_OBJECTS: Final = ("l2_adapter", "offer_settings", "quota")


class ServerFlags(CommandParser):
    """One flag for each setting of core and of `plugins`, in their groups."""

    def __init__(
        self,
        plugins: LoadedPlugins | None = None,
        program: str = "lmcache server",
        about: str = "Run a cache server until it is stopped.",
        *,
        has_help: bool = True,
    ) -> None:
        """For a command that takes what a server takes.  `has_help`: False where what the flags mean is not shown, which makes
        a start faster."""
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
                _add(section, name, field, has_help)

    def given(self, arguments: Sequence[str]) -> dict[str, Any]:
        """What is on the command line, by field name and unchecked.  Raises ConfigError for anything else there."""
        return self.settings_in(self.parse_all(arguments))

    def settings_in(self, given: argparse.Namespace) -> dict[str, Any]:
        """The settings among what was given, by field name and unchecked."""
        return {name: value for name, value in vars(given).items() if name in self._names}

    def parse_all(self, arguments: Sequence[str]) -> argparse.Namespace:
        """As of any parser.  A flag of a plugin that is installed and left out is a warning: `--safe-mode` is added to a
        command line that works otherwise."""
        parsed, unknown = self.parse_known_args(list(arguments))
        while unknown and (missing := self._missing(unknown[0])) and missing.left_out and self._plugins:
            self._plugins.warnings.append(missing.text)
            flag, has_value, _ = unknown[0].partition("=")
            name = catalogue().setting_of_flag(flag)
            takes_value = not has_value and not (name and catalogue().settings[name].is_switch)
            unknown = unknown[2 if takes_value else 1 :]
        if unknown:
            self.refuse(unknown[0])
        return parsed

    def _missing(self, argument: str) -> MissingSetting | None:
        flag = argument.partition("=")[0]
        name = catalogue().setting_of_flag(flag)
        return self._plugins.missing_setting(name, flag) if name and self._plugins else None

    def refuse(self, argument: str) -> NoReturn:
        flag = argument.partition("=")[0]
        if missing := self._missing(argument):
            raise ConfigError(missing.text)
        if flag.startswith(_FLAGS_OF_OTHERS):
            raise ConfigError(
                f"{flag} is a flag of the public LMCache server, for something that this server does not have"
            )
        super().refuse(argument)


def _add(section: argparse._ArgumentGroup, name: str, field: FieldInfo, has_help: bool) -> None:
    flag = flag_of(name, field)
    default = default_text(field) if has_help else ""
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
