"""From flags, environment and file to `ServerSettings`, or to one line that says what is wrong with which of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from lmcache_client.errors import ConfigError
from lmcache_core.app.plugins.known_names import is_foreign_variable
from lmcache_core.app.settings import ENV_PREFIX, ServerSettings, is_loopback
from lmcache_core.model.spelling import nearest

_SHOWN_FAULTS = 3
_HIDDEN = frozenset({"l2_adapter", "eviction_policy", "l2_store_policy", "l2_prefetch_policy", "offer_settings"})
"""Values that may hold secrets and are not repeated in messages."""


def flag_of(name: str, field: FieldInfo) -> str:
    """The flag of a field, with its dashes."""
    extra = field.json_schema_extra
    word = extra.get("flag") if isinstance(extra, dict) else None
    return f"--{word}" if isinstance(word, str) else "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    return ENV_PREFIX + name.upper()


def read_settings(flags: Mapping[str, Any]) -> ServerSettings:
    """The settings that `flags` (by field name), the environment and the file add up to.

    Raises ConfigError with one line."""
    try:
        return ServerSettings(**flags)
    except ValidationError as error:
        faults = [_fault(fault, flags) for fault in error.errors(include_url=False)]
    more = len(faults) - _SHOWN_FAULTS
    raise ConfigError("; ".join(faults[:_SHOWN_FAULTS]) + (f"; and {more} more" if more > 0 else ""))


def _fault(fault: Mapping[str, Any], flags: Mapping[str, Any]) -> str:
    if not fault["loc"]:
        return str(fault["msg"]).removeprefix("Value error, ")
    name = str(fault["loc"][0])
    if fault["type"] == "extra_forbidden":
        guess = nearest(name.replace("-", "_"), list(ServerSettings.model_fields))
        return f"{_file(flags)}: no setting is called '{name}'" + (f"; did you mean '{guess}'?" if guess else "")
    message = str(fault["msg"]).removeprefix("Value error, ")
    shown = "" if name in _HIDDEN else f" is {str(fault['input'])[:80]!r}"
    return f"{_origin(name, flags)}{shown}: {message[:1].lower()}{message[1:]}"


def _origin(name: str, flags: Mapping[str, Any]) -> str:
    if name in flags:
        return flag_of(name, ServerSettings.model_fields[name])
    if os.environ.get(variable_of(name)):
        return variable_of(name)
    return f"{_file(flags)}: key '{name}'"


def _file(flags: Mapping[str, Any]) -> str:
    return f"--config {flags.get('config') or os.environ.get(variable_of('config'))}"


def advice(settings: ServerSettings, environment: Mapping[str, str]) -> list[str]:
    """Lines to warn with: what is allowed but probably not meant, or meant but dangerous."""
    lines = [_unknown_variable(name) for name in sorted(environment) if _is_unknown(name)]
    if not (is_loopback(settings.host) or settings.host.startswith("ipc://")):
        lines.append(
            f"--host {settings.host}: engines of other machines can connect, and their protocol has no passwords; "
            "keep the port inside of a trusted network"
        )
    if settings.http_enabled and settings.http_allow_unauthenticated and not is_loopback(settings.http_host):
        lines.append(
            f"--http-allow-unauthenticated: whoever reaches {settings.http_host}:{settings.http_port} may use it"
        )
    return lines


def _is_unknown(name: str) -> bool:
    if not name.startswith(ENV_PREFIX) or is_foreign_variable(name):
        return False
    return name.removeprefix(ENV_PREFIX).lower() not in ServerSettings.model_fields


def _unknown_variable(name: str) -> str:
    guess = nearest(name.removeprefix(ENV_PREFIX).lower(), ServerSettings.model_fields)
    return f"{name} is set, but no setting is called so" + (f"; did you mean {variable_of(guess)}?" if guess else "")
