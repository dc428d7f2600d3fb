"""What a runtime plugin is told: about the server, without secrets; and the secrets that its configuration names."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel, SecretBytes, SecretStr

from lmcache_client.errors import ConfigError
from lmcache_core.app.masking import masked_text, sounds_secret
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.shown_settings import shown_settings
from lmcache_core.contracts.server_info import ServerInfo

if TYPE_CHECKING:
    from lmcache_core.app.settings import ServerSettings

FLAG: Final = "--runtime-plugin-config"
PREFIX: Final = "LMCACHE_RUNTIME_PLUGIN_"
VALUE_BYTES_MAX: Final = 128 * 1024 - 1
"""The kernel's limit for one variable with its name."""
SECRETS: Final = "secrets"
"""Key of the configuration with a list of places: of settings, or `environment.NAME`."""
_ENVIRONMENT: Final = "environment"
_OWN_PREFIX: Final = "LMCACHE_"


def named_secrets(settings: ServerSettings, environment: Mapping[str, str]) -> dict[str, Any]:
    """By the place that names it.  Raises ConfigError for a place where there is nothing, and for what is no place."""
    places = settings.runtime_plugin_config.get(SECRETS, [])
    if not isinstance(places, list) or not all(isinstance(place, str) for place in places):
        raise ConfigError(
            f'{FLAG}: "{SECRETS}" is a list of places such as "l2_adapter.0.secret_access_key" or "environment.NAME"'
        )
    return {place: _at(place, settings, environment) for place in places}


def program_environment(
    settings: ServerSettings,
    plugins: LoadedPlugins,
    info: ServerInfo,
    secrets: Mapping[str, Any],
    environment: Mapping[str, str],
) -> dict[str, str]:
    """The server's own environment without its settings and without what looks like a secret, and the variables that begin
    with `LMCACHE_RUNTIME_PLUGIN_`.  Raises ConfigError for what is too long for a variable."""
    inherited = {
        name: masked_text(value)
        for name, value in environment.items()
        if not name.startswith(_OWN_PREFIX) and not sounds_secret(name)
    }
    told = {
        "CONFIG": json.dumps(settings.runtime_plugin_config),
        "SERVER": json.dumps({row.name: row.value for row in shown_settings(settings, plugins)}),
        "SECRETS": json.dumps(secrets),
        "INSTANCE_ID": info.instance_id,
        "ENGINE_ENDPOINT": info.engine_endpoint,
        "HTTP_ENDPOINT": info.http_endpoint or "",
        "SERVER_PID": str(os.getpid()),
        "ROLE": "server",
        "WORKER_COUNT": "1",
        "WORKER_ID": "0",
    }
    for name, value in told.items():
        if (length := len(f"{PREFIX}{name}={value}".encode())) > VALUE_BYTES_MAX:
            raise ConfigError(
                f"{FLAG}: {PREFIX}{name} would have {length} bytes, and an environment variable takes {VALUE_BYTES_MAX}; "
                "keep long lists in files, and quotas of many salts in `lmcache quota`"
            )
    return {**inherited, **{f"{PREFIX}{name}": value for name, value in told.items()}}


def _at(place: str, settings: ServerSettings, environment: Mapping[str, str]) -> Any:
    first, _, rest = place.partition(".")
    value: Any = environment if first == _ENVIRONMENT else settings
    steps = [rest] if first == _ENVIRONMENT else place.split(".")
    for step in steps:
        value = _inside(value, step)
        if value is None:
            raise ConfigError(f"{FLAG}: \"{SECRETS}\": there is nothing at '{place}' (not at '{step}')")
    if isinstance(value, SecretStr | SecretBytes):
        value = value.get_secret_value()
    if not isinstance(value, str | int | float):
        raise ConfigError(f"{FLAG}: \"{SECRETS}\": '{place}' is no text and no number; name one value inside of it")
    return value


def _inside(value: Any, step: str) -> Any:
    match value:
        case Mapping():
            return value.get(step)
        case BaseModel() if step in type(value).model_fields:
            return getattr(value, step)
        case str():
            return None
        case Sequence() if step.isdecimal() and int(step) < len(value):
            return value[int(step)]
        case _:
            return None
