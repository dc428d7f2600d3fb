"""The flags of `lmcache server` that are about metrics, spans and recordings, and which subscribers they are for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from lmcache_core import ConfigError, PluginSettings

_METRICS = ("prometheus_host", "prometheus_port", "otlp_endpoint", "metrics_sample_rate")
_LOOKUP_HASH = ("rotation_interval", "rotation_max_size", "max_files")


class ObservabilitySettings(PluginSettings):
    """Metrics, spans and recordings."""

    disable_metrics: bool = Field(False, description="No metrics.")
    prometheus_host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="Where metrics can be scraped, without a token; they name models and salts.",
    )
    prometheus_port: int = Field(
        9090,
        ge=0,
        le=65535,
        json_schema_extra={"listens_on": "prometheus_host", "word": "metrics port", "unless": "disable_metrics"},
        description="TCP port for scraping metrics; 0: none beside `/metrics` of the admin API.",
    )
    otlp_endpoint: str | None = Field(
        None,
        min_length=1,
        description="OTLP/HTTP collector that metrics and spans are pushed to, such as http://host:4318.",
    )
    metrics_sample_rate: float = Field(
        0.01, gt=0, le=1, description="Share of the chunks whose life (lifetime, idle time, reuse) is followed."
    )
    enable_tracing: bool = Field(False, description="Spans of requests, pushed to --otlp-endpoint.")
    lookup_hash_log_dir: str | None = Field(
        None, min_length=1, description="Folder for JSON lines with the chunk hashes of each lookup."
    )
    lookup_hash_log_rotation_interval: float = Field(
        21600.0,
        gt=0,
        le=10**8,
        allow_inf_nan=False,
        description="Seconds after which a new file is started there.",
    )
    lookup_hash_log_rotation_max_size: int = Field(
        104857600, ge=1, le=2**31 - 1, description="Bytes after which a new file is started there."
    )
    lookup_hash_log_max_files: int = Field(
        100, ge=1, le=2**31 - 1, description="Files that are kept there; the oldest go."
    )
    trace_level: Literal["off", "storage", "events"] = Field(
        "off", description="What is recorded for `lmcache trace`: storage operations, or all events."
    )
    trace_output: str | None = Field(
        None, min_length=1, description="File for the recorded trace; with --trace-level only."
    )


def apply(values: ObservabilitySettings, given: frozenset[str]) -> Mapping[str, dict[str, Any] | None]:
    """The subscribers that the flags ask for, with their settings.  Raises ConfigError for a flag that has no effect without
    another one."""
    found: dict[str, dict[str, Any] | None] = {}
    if values.disable_metrics:
        found["subscriber:metrics"] = None
        if values.otlp_endpoint and not values.enable_tracing:
            raise _without("--otlp-endpoint", "--enable-tracing")
    elif metrics := _metrics(values, given):
        found["subscriber:metrics"] = metrics
    if values.enable_tracing:
        found["subscriber:tracing"] = {"otlp_endpoint": values.otlp_endpoint or ""}
    lookup_hash = {name: f"lookup_hash_log_{name}" for name in _LOOKUP_HASH if f"lookup_hash_log_{name}" in given}
    if values.lookup_hash_log_dir:
        settings = {name: getattr(values, setting) for name, setting in lookup_hash.items()}
        found["subscriber:lookup_hash"] = {"dir": values.lookup_hash_log_dir, **settings}
    elif lookup_hash:
        raise _without(f"--{next(iter(lookup_hash.values())).replace('_', '-')}", "--lookup-hash-log-dir")
    if values.trace_level != "off":
        output = {"output": values.trace_output} if values.trace_output else {}
        found["subscriber:trace"] = {"level": values.trace_level, **output}
    elif values.trace_output:
        raise _without("--trace-output", "--trace-level")
    return found


def _metrics(values: ObservabilitySettings, given: frozenset[str]) -> dict[str, Any]:
    names = [name for name in _METRICS if name in given and getattr(values, name) is not None]
    settings = {name.removeprefix("metrics_"): getattr(values, name) for name in names}
    if "prometheus_port" in given:
        settings["prometheus_port_given"] = True
    if values.enable_tracing:
        settings["exemplars"] = True
    return settings


def _without(flag: str, other: str) -> ConfigError:
    return ConfigError(f"{flag} does nothing without {other}; add it or leave this out")
