"""The flags about sidecar programs, and the settings of the service that runs them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import Field, field_validator

from lmcache_core import ConfigError, PluginSettings


class SidecarSettings(PluginSettings):
    locations: tuple[str, ...] = ()
    """Programs, and folders of them."""
    config: dict[str, Any] = Field({})
    """Given to programs in `LMCACHE_RUNTIME_PLUGIN_CONFIG`; its `secrets` lists the places of secrets."""


class SidecarFlags(PluginSettings):
    """Sidecar programs."""

    runtime_plugin_locations: tuple[str, ...] = Field(
        (),
        json_schema_extra={"metavar": "PATH"},
        description="A program (.py, .sh, executable) or a folder of them, to run as long as the server does. "
        "Repeatable; comma list in the environment.",
    )
    runtime_plugin_config: dict[str, Any] = Field(
        {},
        description="JSON object that those programs are given with the server's configuration; its `secrets` lists what "
        "they are given unmasked.",
    )

    @field_validator("runtime_plugin_locations", mode="before")
    @classmethod
    def _paths(cls, value: Any) -> Any:
        return tuple(path for part in value.split(",") if (path := part.strip())) if isinstance(value, str) else value

    @field_validator("runtime_plugin_config", mode="before")
    @classmethod
    def _object_or_json(cls, value: Any) -> Any:
        try:
            given = json.loads(value) if isinstance(value, str) else value
        except json.JSONDecodeError as error:
            raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from None
        if not isinstance(given, dict):
            raise ValueError('expected a JSON object such as {"interval_seconds": 10}')
        return given


def apply(values: SidecarFlags, given: frozenset[str]) -> Mapping[str, dict[str, Any]]:
    """The service where there are programs.  Raises ConfigError for a configuration without programs."""
    if values.runtime_plugin_locations:
        settings = {"locations": values.runtime_plugin_locations, "config": values.runtime_plugin_config}
        return {"service:sidecar": settings}
    if values.runtime_plugin_config:
        raise ConfigError("--runtime-plugin-config has no effect without --runtime-plugin-locations; give both or none")
    return {}
