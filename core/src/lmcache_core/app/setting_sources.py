"""Where settings come from besides the command line: the environment and the `--config` file."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_settings import EnvSettingsSource, PydanticBaseSettingsSource

from lmcache_client.errors import ConfigError
from lmcache_core.app.plugins.known_names import is_service_address


class SettingSource(StrEnum):
    """Who gave a setting its value."""

    FLAG = "flag"
    ENVIRONMENT = "environment"
    FILE = "file"
    DEFAULT = "default"


def sources(
    given: Collection[str], flags: Collection[str], environment: Mapping[str, str], prefix: str
) -> dict[str, SettingSource]:
    """By name, for the settings that were given a value, `flags` of them on the command line."""
    variables = {name.lower(): value for name, value in environment.items() if value}
    found = {}
    for name in given:
        said = variables.get(f"{prefix}{name}".lower(), "")
        by_environment = said and not (name == "port" and is_service_address(said))
        found[name] = SettingSource.ENVIRONMENT if by_environment else SettingSource.FILE
        if name in flags:
            found[name] = SettingSource.FLAG
    return found


class EnvironmentSource(EnvSettingsSource):
    """`LMCACHE_*`, but not the address that Kubernetes puts into LMCACHE_PORT where a service is called `lmcache`."""

    def __call__(self) -> dict[str, Any]:
        values = super().__call__()
        return {name: value for name, value in values.items() if not (name == "port" and is_service_address(value))}


class ConfigFileSource(PydanticBaseSettingsSource):
    """The values of the file that a stronger source (command line, environment) names as `config`, or none."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return None, field_name, False  # the file is read as a whole

    def __call__(self) -> dict[str, Any]:
        path = self.current_state.get("config")
        return read_config_file(Path(path)) if path else {}


def read_config_file(path: Path) -> dict[str, Any]:
    """The keys and values of a YAML or TOML file.  Raises ConfigError with its path and, where known, the line."""
    kind = path.suffix.lower()
    if kind not in (".yaml", ".yml", ".toml"):
        raise ConfigError(f"--config {path}: the name must end in .yaml, .yml or .toml")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"--config {path}: cannot be read: {reason}") from None
    values = _toml(path, text) if kind == ".toml" else _yaml(path, text)
    if values is None:
        return {}
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise ConfigError(f"--config {path}: expected keys and values, such as 'port: 5555'")
    if "config" in values:
        raise ConfigError(f"--config {path}: key 'config' makes no sense inside of the file; leave it out")
    return values


def _toml(path: Path, text: str) -> Any:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"--config {path}: not TOML: {error}") from None


def _yaml(path: Path, text: str) -> Any:
    import yaml  # here, so that a server without a YAML file does not pay for the parser

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or "it cannot be parsed"
        raise ConfigError(f"--config {path}: {where}not YAML: {problem}") from None
