"""The settings of `lmcache server`, and which of them go together.

Each setting is a flag (`--l1-size-gb`), a variable (`LMCACHE_L1_SIZE_GB`) and a key of the `--config` file (`l1_size_gb`);
the first of these that gives a value wins, then the default.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from importlib import import_module
from ipaddress import ip_address
from typing import Any, ClassVar, NamedTuple

import msgspec
from pydantic import BaseModel, ConfigDict, PrivateAttr, field_validator, model_validator
from pydantic.fields import FieldInfo

from lmcache_client.errors import LMCacheError
from lmcache_core.app.console.command_line import ENV_PREFIX
from lmcache_core.app.plugins.discovery import Candidate
from lmcache_core.app.plugins.plugin_fault import describe
from lmcache_core.app.setting_groups import (
    QUOTA_EXAMPLE,
    CacheSettings,
    EnginePortSettings,
    EvictionSettings,
    L1Settings,
    L2Settings,
    LifecycleSettings,
    ObservabilitySettings,
    PluginSelectionSettings,
    TenantSettings,
    check_quotas,
    from_json,
    json_objects,
    name_or_object,
)
from lmcache_core.contracts.offer import SettingGroup
from lmcache_core.contracts.settings import PluginSettings
from lmcache_core.model.errors import PluginContractError, PluginLoadError

UNIX_ENDPOINT_MAX = 107 + len("ipc://")
"""What the kernel has room for."""


class SettingSource(StrEnum):
    """Who gave a setting its value; the first wins over the others."""

    FLAG = "flag"
    ENVIRONMENT = "environment"
    FILE = "file"
    DEFAULT = "default"


class GroupValues(msgspec.Struct, frozen=True):
    """A plugin's group of settings, and its values as they were validated by its own model."""

    group: LoadedGroup
    values: BaseModel


class ServerSettings(
    EnginePortSettings,
    CacheSettings,
    L1Settings,
    EvictionSettings,
    TenantSettings,
    L2Settings,
    LifecycleSettings,
    ObservabilitySettings,
    PluginSelectionSettings,
):
    """Core's settings of `lmcache server`.  `app.configuration.read_settings` reads them from flags, environment and file, and
    adds those of plugins."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True, defer_build=False)
    _sources: dict[str, SettingSource] = PrivateAttr(default_factory=dict)
    _added: tuple[GroupValues, ...] = PrivateAttr(())
    _unused: tuple[str, ...] = PrivateAttr(())

    def source_of(self, name: str) -> SettingSource:
        """Who gave this setting its value; a plugin's setting, too."""
        given = SettingSource.FLAG if name in self.model_fields_set else SettingSource.DEFAULT
        return self._sources.get(name, given)

    @property
    def added(self) -> tuple[GroupValues, ...]:
        """The settings of plugins, group by group."""
        return self._added

    @property
    def unused(self) -> tuple[str, ...]:
        """A line for each variable and key that was given, and belongs to a plugin that was left out."""
        return self._unused

    @field_validator("host")
    @classmethod
    def _path_of_a_socket(cls, value: str) -> str:
        if value.startswith("ipc:") and not value.startswith("ipc:///"):
            raise ValueError("a Unix socket is named by a whole path, such as ipc:///run/lmcache/engines.sock")
        if value.startswith("ipc:") and len(value) > UNIX_ENDPOINT_MAX:
            raise ValueError(f"the path of a Unix socket has at most {UNIX_ENDPOINT_MAX - len('ipc://')} characters")
        return value

    @field_validator("l2_adapter", mode="before")
    @classmethod
    def _objects(cls, value: Any) -> Any:
        return json_objects(value, '{"type": "memory"}')

    @field_validator("quota", mode="before")
    @classmethod
    def _quotas(cls, value: Any) -> Any:
        quotas = json_objects(value, QUOTA_EXAMPLE)
        check_quotas(quotas)
        return quotas

    @field_validator("eviction_policy", "l2_store_policy", "l2_prefetch_policy", mode="before")
    @classmethod
    def _name_or_object(cls, value: Any) -> Any:
        return name_or_object(value)

    @field_validator("offer_settings", mode="before")
    @classmethod
    def _settings_by_offer(cls, value: Any) -> Any:
        given = from_json(value) if isinstance(value, str) else value
        if not isinstance(given, dict) or not all(isinstance(values, dict) for values in given.values()):
            raise ValueError('expected a JSON object of objects such as {"subscriber:log": {}}')
        return given

    @field_validator("plugins", "no_plugins", "engine_type", "engine_users", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return tuple(name for part in value.split(",") if (name := part.strip()))

    @field_validator("native", mode="before")
    @classmethod
    def _on_or_off(cls, value: Any) -> Any:
        """YAML takes both words for booleans."""
        return ("on" if value else "off") if isinstance(value, bool) else value

    @field_validator("log_level", mode="before")
    @classmethod
    def _upper(cls, value: Any) -> Any:
        return value.upper() if isinstance(value, str) else value

    @field_validator("l1_align_bytes")
    @classmethod
    def _power_of_two(cls, value: int) -> int:
        if value & (value - 1):
            raise ValueError(f"must be a power of two, such as {1 << value.bit_length()}")
        return value

    @model_validator(mode="after")
    def _combinations(self) -> ServerSettings:
        if both := sorted(set(self.plugins) & set(self.no_plugins)):
            raise ValueError(f"--plugin and --no-plugin both name '{both[0]}'; leave one of them out")
        check_pin_room(self.l1_pin_max_ratio, self.eviction_trigger_watermark)
        return self


GROUPS: tuple[type[BaseModel], ...] = ServerSettings.__bases__
"""What core's settings are grouped by, in the order of `--help` and of the reference; a group's docstring is its heading."""


def check_pin_room(pin_max_ratio: float, watermark: float) -> None:
    """Raises ValueError where pins alone could keep L1 above the watermark: everything else would leave it."""
    if pin_max_ratio >= watermark:
        raise ValueError(
            f"--l1-pin-max-ratio {pin_max_ratio:g} is not below --eviction-trigger-watermark {watermark:g}: what is pinned "
            "could make eviction empty the rest of L1; lower the first or raise the second"
        )


def is_loopback(host: str) -> bool:
    """Can only this machine reach `host`?  A name other than localhost counts as reachable from elsewhere."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


Applied = Mapping[str, Mapping[str, Any] | None]
"""Settings of offers by "kind:name"; None switches one off."""


class LoadedGroup(msgspec.Struct, frozen=True):
    """A heading of `--help` and the model of the settings below it: a plugin's, or core's own."""

    title: str
    model: type[BaseModel]
    plugin: Candidate | None = None
    apply: str = ""
    """Import string of the plugin's function."""

    def applied(self, values: BaseModel, given: frozenset[str]) -> Applied:
        """What the plugin makes of its settings.  Its ConfigError passes; raises PluginLoadError for any other error, and
        PluginContractError for an answer of another form."""
        assert self.plugin is not None
        subject = f"settings of plugin '{self.plugin.name}' ({self.plugin.owner}): {self.apply}"
        try:
            apply: Callable[[Any, frozenset[str]], Any] = _imported(self.apply)
            answer = apply(values, given)
        except LMCacheError:
            raise
        except (Exception, SystemExit) as error:
            raise PluginLoadError(self.plugin.name, f"{subject} failed: {describe(error)}") from error
        if not isinstance(answer, Mapping) or not all(
            isinstance(key, str) and (each is None or isinstance(each, Mapping)) for key, each in answer.items()
        ):
            raise PluginContractError(
                self.plugin.name, f"{subject} returned {answer!r:.80}; it must return settings by 'kind:name', or None"
            )
        return answer


class MissingSetting(NamedTuple):
    """Why a setting that was given has no effect."""

    text: str
    left_out: bool
    """Its plugin is installed, and --plugin, --no-plugin or --safe-mode leaves it out."""


def variable_of(name: str) -> str:
    """The environment variable of a setting."""
    return ENV_PREFIX + name.upper()


def flag_of(name: str, field: FieldInfo) -> str:
    """The flag of a setting, with its dashes."""
    extra = field.json_schema_extra
    word = extra.get("flag") if isinstance(extra, dict) else None
    return f"--{word}" if isinstance(word, str) else "--" + name.replace("_", "-")


def load_group(candidate: Candidate, group: SettingGroup) -> LoadedGroup:
    """Imports the group's model.  Raises PluginError."""
    subject = f"settings '{group.title}' ({candidate.owner})"
    try:
        model = _imported(group.model)
    except (Exception, SystemExit) as error:
        raise PluginLoadError(candidate.name, f"{subject}: {group.model}: {describe(error)}") from error
    if not (isinstance(model, type) and issubclass(model, PluginSettings)):
        raise PluginContractError(candidate.name, f"{subject}: '{group.model}' is not a PluginSettings model")
    for name, field in model.model_fields.items():
        if field.is_required() or not field.description:
            lacks = "default" if field.is_required() else "description"
            raise PluginContractError(candidate.name, f"{subject}: setting '{name}' has no {lacks}")
    return LoadedGroup(group.title, model, candidate, group.apply)


def clashes(groups: Sequence[LoadedGroup], own: Mapping[str, FieldInfo]) -> dict[int, str]:
    """By the index of a group, a sentence about the first of its settings that core or another plugin has, too; by name or
    by flag.  `own`: core's."""
    owners: dict[str, list[int]] = defaultdict(list)
    for index, group in enumerate(groups):
        for word in {*group.model.model_fields, *(flag_of(*each) for each in group.model.model_fields.items())}:
            owners[word].append(index)
    of_core = {*own, *(flag_of(*each) for each in own.items()), "help", "--help"}
    found: dict[int, str] = {}
    for word, indices in sorted(owners.items(), reverse=True):  # names before flags
        plugins = [plugin for index in indices if (plugin := groups[index].plugin)]
        said = " and ".join(f"plugin '{each.name}' ({each.owner})" for each in plugins)
        remedy = " or ".join(f"--no-plugin {each.name}" for each in plugins)
        for index in indices:
            if word in of_core:
                found.setdefault(
                    index, f"setting '{word}' of {said} is one of core's: leave the plugin out with {remedy}"
                )
            elif len(indices) > 1:
                found.setdefault(
                    index,
                    f"setting '{word}' is one of {said}; none of them is used: leave all but one out with {remedy}",
                )
    return found


def _imported(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)
