"""The settings of `lmcache server`, and which of them go together.

Each setting is a flag (`--l1-size-gb`), a variable (`LMCACHE_L1_SIZE_GB`) and a key of the `--config` file (`l1_size_gb`);
the first of these that gives a value wins, then the default.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, PrivateAttr, field_validator, model_validator

from lmcache_core.app.quota_setting import QUOTA_EXAMPLE, check_quotas
from lmcache_core.app.setting_groups import (
    CacheSettings,
    EnginePortSettings,
    EvictionSettings,
    L1Settings,
    L2Settings,
    LifecycleSettings,
    ObservabilitySettings,
    PluginSelectionSettings,
    TenantSettings,
)
from lmcache_core.app.setting_json import from_json, json_objects, name_or_object

if TYPE_CHECKING:
    from lmcache_core.app.plugins.plugin_settings import LoadedGroup

UNIX_ENDPOINT_MAX = 107 + len("ipc://")
"""What the kernel has room for."""


class SettingSource(StrEnum):
    """Who gave a setting its value."""

    FLAG = "flag"
    ENVIRONMENT = "environment"
    FILE = "file"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class GroupValues:
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
    """Core's settings of `lmcache server`, and those of plugins beside them.  `app.configuration.read_settings` makes one of
    flags, environment and file; constructing one takes nothing but its arguments."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)
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
