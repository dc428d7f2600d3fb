"""Settings of the subscriber `metrics`."""

from __future__ import annotations

from pydantic import Field, field_validator

from lmcache_core import PluginSettings
from lmcache_observability.otlp_url import otlp_url
from lmcache_observability.shown_salt import SaltStyle


class MetricsSettings(PluginSettings):
    """What is measured, how it is named, and where it goes."""

    prometheus_host: str = Field(
        "127.0.0.1", min_length=1, description="Where metrics can be scraped, without a token."
    )
    prometheus_port: int = Field(
        9090, ge=0, le=65535, description="TCP port for it; 0: none beside `/metrics` of the admin API."
    )
    prometheus_port_given: bool = Field(
        False, description="Whether the server may not start without this port; otherwise there is a warning."
    )
    otlp_endpoint: str | None = Field(
        None, description="Collector that metrics are pushed to, such as http://host:4318."
    )
    otlp_interval_seconds: float = Field(15.0, ge=1, le=3600, description="How often they are pushed.")
    otlp_timeout_seconds: float = Field(5.0, gt=0, le=60, description="How long the collector may take to answer.")
    sample_rate: float = Field(
        0.01, gt=0, le=1, description="Share of the chunks whose life (lifetime, idle time, reuse) is followed."
    )
    exemplars: bool = Field(False, description="Name the trace of a request with what was measured of it.")
    salts: SaltStyle = Field("plain", description="Whether labels name cache salts or digests of them.")
    label_values_max: int = Field(
        256, ge=1, le=10_000, description="Values of one label that have series of their own; all others are `_other`."
    )
    ceiling_salts_max: int = Field(
        256, ge=0, le=10_000, description="Cache salts with a hit-rate ceiling of their own, at 43 KiB each."
    )
    ceiling_retention_seconds: float = Field(
        86400.0,
        ge=60,
        description="How long a chunk that was not asked for counts as one that a big cache would still have, "
        "and twice as long at most.",
    )

    @field_validator("otlp_endpoint")
    @classmethod
    def _is_a_collector(cls, endpoint: str | None) -> str | None:
        if endpoint is not None:
            otlp_url(endpoint, "metrics")
        return endpoint
