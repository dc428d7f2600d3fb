"""Settings of the subscribers `tracing` and `slow_requests`."""

from __future__ import annotations

from pydantic import Field, field_validator

from lmcache_core import PluginSettings
from lmcache_observability.otlp_url import otlp_url
from lmcache_observability.shown_salt import SaltStyle


class TracingSettings(PluginSettings):
    """Spans of requests, pushed to an OTLP/HTTP collector."""

    otlp_endpoint: str = Field(
        "", description="Collector, such as http://host:4318; it is needed.", validate_default=True
    )
    sample_ratio: float = Field(
        1.0,
        ge=0,
        le=1,
        description="Share of the requests that get spans, where the engine sends no decision of its own.",
    )
    requests_per_second_max: float = Field(
        100.0,
        gt=0,
        description="Requests per second that get spans without an engine's asking for it; others get none.",
    )
    pending_requests_max: int = Field(
        8192, ge=1, le=1_000_000, description="Requests under way that are followed; beyond it the oldest is dropped."
    )
    export_delay_seconds: float = Field(
        1.0, gt=0, le=60, description="How long spans are gathered before they are sent."
    )
    export_timeout_seconds: float = Field(5.0, gt=0, le=60, description="How long the collector may take to answer.")
    export_queue_spans: int = Field(
        8192, ge=1, le=1_000_000, description="Spans that may wait for the collector; more are dropped and counted."
    )
    salts: SaltStyle = Field("hashed", description="Whether spans name cache salts or digests of them.")

    @field_validator("otlp_endpoint")
    @classmethod
    def _is_a_collector(cls, endpoint: str) -> str:
        if not endpoint:
            raise ValueError("spans need a collector; name one with --otlp-endpoint, such as http://host:4318")
        otlp_url(endpoint, "traces")
        return endpoint


class SlowRequestsSettings(PluginSettings):
    """The slowest requests of late, kept for `GET /requests/slowest`."""

    requests_max: int = Field(50, ge=1, le=1000, description="Requests that are kept.")
    window_seconds: float = Field(900.0, gt=0, description="How long they are kept.")
    pending_requests_max: int = Field(
        8192, ge=1, le=1_000_000, description="Requests under way that are followed; beyond it the oldest is dropped."
    )
    salts: SaltStyle = Field("hashed", description="Whether the answer names cache salts or digests of them.")
