"""The flags of membership, and the settings of its service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from lmcache_core import ConfigError, PluginSettings


class MemberSettings(PluginSettings):
    urls: tuple[str, ...] = Field(min_length=1)
    advertise_ip: str | None = None
    heartbeat_interval: float = Field(5.0, gt=0, le=3600, allow_inf_nan=False)
    l2_event_reporting: bool = False
    flush_interval: float = Field(1.0, gt=0, le=3600, allow_inf_nan=False)
    token_file: str | None = None
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    freeze_max_seconds: float = Field(30.0, ge=0, le=3600, allow_inf_nan=False)


class CoordinatorFlags(PluginSettings):
    """Membership in a fleet."""

    coordinator_url: tuple[str, ...] = Field(
        (),
        json_schema_extra={"metavar": "URL"},
        description="Base URL of a coordinator, such as http://coordinator:9300; the server registers there. Repeatable; comma "
        "list in the environment.",
    )
    coordinator_advertise_ip: str | None = Field(
        None,
        min_length=1,
        description="Address at which others reach this server; default: the one it reaches others from.",
    )
    coordinator_heartbeat_interval: float = Field(
        5.0, gt=0, le=3600, allow_inf_nan=False, description="Seconds between two heartbeats."
    )
    coordinator_l2_event_reporting: bool = Field(
        False,
        description="Tell the coordinator what is stored in, found in and deleted from L2: quotas over shared L2 need it.",
    )
    coordinator_l2_event_flush_interval: float = Field(
        1.0,
        gt=0,
        le=3600,
        allow_inf_nan=False,
        description="Seconds for which changes are collected before they are sent.",
    )
    coordinator_event_reporting: bool = Field(False, description="Another name of --coordinator-l2-event-reporting.")
    coordinator_event_flush_interval: float = Field(
        1.0, gt=0, le=3600, allow_inf_nan=False, description="Another name of --coordinator-l2-event-flush-interval."
    )
    coordinator_token_file: str | None = Field(
        None, min_length=1, description="File with the Bearer token that the coordinator asks for."
    )
    coordinator_ca: str | None = Field(
        None,
        min_length=1,
        description="File with the certificates that an https coordinator is verified by; default: the system's.",
    )
    coordinator_cert: str | None = Field(
        None, min_length=1, description="File with this server's certificate, for a coordinator that asks for one."
    )
    coordinator_key: str | None = Field(
        None, min_length=1, description="File with its private key; default: in the file of the certificate."
    )
    freeze_max_seconds: float = Field(
        30.0,
        ge=0,
        le=3600,
        allow_inf_nan=False,
        description="How long a coordinator may have stores refused at a time; 0: never.",
    )

    @field_validator("coordinator_url", mode="before")
    @classmethod
    def _urls(cls, value: Any) -> Any:
        urls = [value] if isinstance(value, str) else value
        return tuple(url.strip().rstrip("/") for each in urls for url in each.split(",") if url.strip())

    @field_validator("coordinator_url")
    @classmethod
    def _are_urls(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        for url in urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.path or parts.query:
                raise ValueError(
                    f"'{url}' is not the base URL of a coordinator; expected one such as http://coordinator:9300"
                )
        return urls


def apply(values: CoordinatorFlags, given: frozenset[str]) -> Mapping[str, dict[str, Any]]:
    """The service where a coordinator is given.  Raises ConfigError for other flags without one."""
    if not values.coordinator_url:
        if others := sorted(name for name in given if name != "coordinator_url"):
            flag = others[0].replace("_", "-")
            raise ConfigError(f"--{flag} has no effect without --coordinator-url; give both or none")
        return {}
    if values.coordinator_key and not values.coordinator_cert:
        raise ConfigError("--coordinator-key has no effect without --coordinator-cert; give both")
    tls = [flag for flag in ("ca", "cert", "key") if getattr(values, f"coordinator_{flag}") is not None]
    if tls and not any(url.startswith("https://") for url in values.coordinator_url):
        raise ConfigError(f"--coordinator-{tls[0]} has no effect without an https URL; give one with --coordinator-url")
    flush_interval = values.coordinator_l2_event_flush_interval
    if "coordinator_l2_event_flush_interval" not in given:
        flush_interval = values.coordinator_event_flush_interval
    return {
        "service:fleet_member": {
            "urls": values.coordinator_url,
            "advertise_ip": values.coordinator_advertise_ip,
            "heartbeat_interval": values.coordinator_heartbeat_interval,
            "l2_event_reporting": values.coordinator_l2_event_reporting or values.coordinator_event_reporting,
            "flush_interval": flush_interval,
            "token_file": values.coordinator_token_file,
            "ca": values.coordinator_ca,
            "cert": values.coordinator_cert,
            "key": values.coordinator_key,
            "freeze_max_seconds": values.freeze_max_seconds,
        },
        "http_routes:fleet_member": {},
    }
