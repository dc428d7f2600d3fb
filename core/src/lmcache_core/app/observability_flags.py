"""Flags of the server that are settings of subscribers: core parses them, and whoever offers the subscriber obeys them.

A flag that asks for something makes its subscriber active.  A plugin that offers a subscriber of the same name is handed
the same values, as far as its settings model has the fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from lmcache_client.errors import ConfigError
from lmcache_core.app.configuration import flag_of
from lmcache_core.app.settings import ServerSettings
from lmcache_core.contracts.settings import PluginSettings

METRICS: Final = "metrics"


class Use(NamedTuple):
    """`setting` of the server is `field` of this subscriber's settings."""

    setting: str
    subscriber: str
    field: str


USES: Final = (
    Use("prometheus_host", METRICS, "prometheus_host"),
    Use("prometheus_port", METRICS, "prometheus_port"),
    Use("otlp_endpoint", METRICS, "otlp_endpoint"),
    Use("metrics_sample_rate", METRICS, "sample_rate"),
    Use("enable_tracing", METRICS, "exemplars"),
    Use("otlp_endpoint", "tracing", "otlp_endpoint"),
    Use("lookup_hash_log_dir", "lookup_hash", "dir"),
    Use("lookup_hash_log_rotation_interval", "lookup_hash", "rotation_interval"),
    Use("lookup_hash_log_rotation_max_size", "lookup_hash", "rotation_max_size"),
    Use("lookup_hash_log_max_files", "lookup_hash", "max_files"),
    Use("trace_level", "trace", "level"),
    Use("trace_output", "trace", "output"),
)
_SWITCHES: Final = MappingProxyType(
    {
        METRICS: ("prometheus_port", "prometheus_host", "otlp_endpoint", "metrics_sample_rate"),
        "tracing": ("enable_tracing",),
        "lookup_hash": ("lookup_hash_log_dir",),
        "trace": ("trace_level",),
    }
)
"""Settings that make a subscriber active when they are given and ask for something."""
_PORT_GIVEN: Final = "prometheus_port_given"
"""Field that tells a port that was asked for from the default one, which the server can do without."""
_NOTHING: Final = (None, False, 0, "off")
"""Values that ask for nothing, so that they may be given to a server without the plugin."""


def switched_on(settings: ServerSettings) -> dict[str, str]:
    """The flag that asks for it, by subscriber."""
    found = {}
    for subscriber, names in _SWITCHES.items():
        if flag := next((_flag(name) for name in names if _asks(settings, name)), None):
            found[subscriber] = flag
    if settings.disable_metrics:
        found.pop(METRICS, None)
    return found


def check_uses(settings: ServerSettings, active: Sequence[str]) -> None:
    """Raise ConfigError for a flag that was given and that no active subscriber can obey."""
    for name in dict.fromkeys(use.setting for use in USES):
        users = [use.subscriber for use in USES if use.setting == name]
        if not _asks(settings, name) or any(user in active for user in users):
            continue
        if switches := [_SWITCHES[user][0] for user in users if user != METRICS]:
            raise ConfigError(f"{_flag(name)} does nothing without {_flag(switches[0])}; add it or leave this out")


def with_flags(
    settings: ServerSettings, subscriber: str, model: type[PluginSettings] | None, given: Mapping[str, Any]
) -> dict[str, Any]:
    """`given` (of `--offer-settings`) and what the flags say, for the settings `model` of this subscriber.

    Raises ConfigError for what is given twice, and for a flag that was given and has no field there."""
    fields = model.model_fields if model else {}
    values = dict(given)
    for use in USES:
        if use.subscriber != subscriber:
            continue
        asked, value = _asks(settings, use.setting), getattr(settings, use.setting)
        if use.field not in fields:
            if asked and use.setting in _SWITCHES[subscriber]:
                raise ConfigError(
                    f"{_flag(use.setting)}: subscriber '{subscriber}' has no setting '{use.field}' for it"
                )
        elif use.field not in given:
            if value not in _NOTHING or use.setting in settings.model_fields_set:
                values[use.field] = value
        elif asked:
            where = f"--offer-settings subscriber:{subscriber}"
            raise ConfigError(f"{_flag(use.setting)} and '{use.field}' of {where} are the same; leave one of them out")
    if _PORT_GIVEN in fields:
        values.setdefault(_PORT_GIVEN, "prometheus_port" in settings.model_fields_set)
    return values


def _asks(settings: ServerSettings, name: str) -> bool:
    return name in settings.model_fields_set and getattr(settings, name) not in _NOTHING


def _flag(name: str) -> str:
    return flag_of(name, ServerSettings.model_fields[name])
