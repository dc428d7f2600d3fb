"""The environment of sidecar programs: facts of the server without secrets, and the secrets that the configuration names."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, Final

from lmcache_core import ConfigError, ServerInfo, ServiceContext

FLAG: Final = "--runtime-plugin-config"
PREFIX: Final = "LMCACHE_RUNTIME_PLUGIN_"
VALUE_BYTES_MAX: Final = 128 * 1024 - 1
"""The kernel's limit for one variable with its name."""
SECRETS: Final = "secrets"
"""Key of the configuration with a list of places: of settings, or `environment.NAME`."""
_ENVIRONMENT: Final = "environment"


def named_secrets(config: Mapping[str, Any], context: ServiceContext) -> dict[str, Any]:
    """By the place that names it.  Raises ConfigError for a place without a value, and for anything that is not a place."""
    places = config.get(SECRETS, [])
    if not isinstance(places, list) or not all(isinstance(place, str) for place in places):
        raise ConfigError(
            f'{FLAG}: "{SECRETS}" is a list of places such as "l2_adapter.0.secret_access_key" or "environment.NAME"'
        )
    return {place: _at(place, context) for place in places}


def program_environment(
    config: Mapping[str, Any], secrets: Mapping[str, Any], server: ServerInfo, context: ServiceContext
) -> dict[str, str]:
    """The server's own environment without settings and secrets, and the variables that begin with
    `LMCACHE_RUNTIME_PLUGIN_`.  Raises ConfigError for a value that is too long for a variable."""
    own = {
        "CONFIG": json.dumps(config),
        "SERVER": json.dumps(dict(context.configuration())),
        "SECRETS": json.dumps(secrets),
        "INSTANCE_ID": server.instance_id,
        "ENGINE_ENDPOINT": server.engine_endpoint,
        "HTTP_ENDPOINT": server.http_endpoint or "",
        "SERVER_PID": str(os.getpid()),
        "ROLE": "server",
        "WORKER_COUNT": "1",
        "WORKER_ID": "0",
    }
    for name, value in own.items():
        if (length := len(f"{PREFIX}{name}={value}".encode())) > VALUE_BYTES_MAX:
            raise ConfigError(
                f"{FLAG}: {PREFIX}{name} would have {length} bytes, and an environment variable takes {VALUE_BYTES_MAX}; "
                "keep long lists in files, and quotas of many salts in `lmcache quota`"
            )
    return {**context.environment(), **{f"{PREFIX}{name}": value for name, value in own.items()}}


def _at(place: str, context: ServiceContext) -> str | int | float:
    first, _, rest = place.partition(".")
    value = os.environ.get(rest) if first == _ENVIRONMENT else context.value_at(place)
    if value is None:
        raise ConfigError(f"{FLAG}: \"{SECRETS}\": there is nothing at '{place}' (not at '{_missing(place, context)}')")
    if not isinstance(value, str | int | float):
        raise ConfigError(f"{FLAG}: \"{SECRETS}\": '{place}' is neither text nor a number; name one value inside of it")
    return value


def _missing(place: str, context: ServiceContext) -> str:
    """The first part of the place without a value."""
    first, _, rest = place.partition(".")
    if first == _ENVIRONMENT:
        return rest
    parts = place.split(".")
    return next(
        (part for end, part in enumerate(parts, 1) if context.value_at(".".join(parts[:end])) is None), parts[-1]
    )
