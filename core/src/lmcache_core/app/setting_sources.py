"""Where settings come from beside the command line: the environment and the `--config` file."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource

from lmcache_core.app.config_file import read_config_file
from lmcache_core.app.plugins.plugin_selection import ENV_PREFIX, is_set


class SettingSource(StrEnum):
    """Who gave a setting its value; the first wins over the others."""

    FLAG = "flag"
    ENVIRONMENT = "environment"
    FILE = "file"
    DEFAULT = "default"


def variable_of(name: str) -> str:
    return ENV_PREFIX + name.upper()


class EnvironmentSource(EnvSettingsSource):
    """The variables `LMCACHE_...` in upper or lower case, as text: the validators of a model parse it.  An empty variable
    gives nothing, and neither does the address that Kubernetes puts into LMCACHE_PORT."""

    def __init__(self, model: type[Any]) -> None:
        super().__init__(model, case_sensitive=False, env_prefix=ENV_PREFIX, env_ignore_empty=True)

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        value, key, is_complex = super().get_field_value(field, field_name)
        return value if value and is_set(variable_of(field_name), value) else None, key, is_complex

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        return value


class ConfigFileSource(PydanticBaseSettingsSource):
    """The keys of the `--config` file that are fields of a model.  Without a `path`, the flags or the environment name the
    file.  Raises ConfigError for a file that cannot be read."""

    def __init__(self, model: type[Any], path: Path | None = None) -> None:
        super().__init__(model)
        self._path = path

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return None, field_name, False  # the file is read as a whole

    def __call__(self) -> dict[str, Any]:
        path = self._path or self.current_state.get("config")
        values = read_config_file(Path(path)) if path else {}
        return {name: value for name, value in values.items() if name in self.settings_cls.model_fields}


def read_values(model: type[BaseModel], flags: Mapping[str, Any], path: Path | None) -> BaseModel:
    """`model` with its share of `flags` (by field name), the environment and the file.  Core's settings know these sources;
    the model of a plugin is a plain one, and is given what they hold.

    Raises pydantic's ValidationError, and ConfigError."""
    own = {name: flags[name] for name in model.model_fields if name in flags}
    if issubclass(model, BaseSettings):
        return model(**own)
    return model.model_validate({**ConfigFileSource(model, path)(), **EnvironmentSource(model)(), **own})
