"""The flags of the admin API, and the settings of its service."""

from __future__ import annotations

import os
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any

from pydantic import Field

from lmcache_core import ConfigError, PluginSettings
from lmcache_http.tokens import TOKEN_VARIABLE


class AdminSettings(PluginSettings):
    host: str = "127.0.0.1"
    port: int = Field(8080, ge=1, le=65535)
    token_file: str | None = None


class HttpFlags(PluginSettings):
    """Admin HTTP."""

    http_enabled: bool = Field(True, json_schema_extra={"flag": "http"}, description="Serve the admin HTTP API.")
    http_host: str = Field("127.0.0.1", min_length=1, description="Where the admin API listens.")
    http_port: int = Field(
        8080,
        ge=1,
        le=65535,
        json_schema_extra={
            "listens_on": "http_host",
            "word": "admin port",
            "only_with": "http_enabled",
            "stops_the_start": True,
        },
        description="TCP port of the admin API.",
    )
    http_token_file: str | None = Field(
        None,
        min_length=1,
        description="File with the Bearer tokens that the admin API asks for, one in each line; `read` behind one lets it "
        f"do nothing but GET. Read again when it changes. One token can be in {TOKEN_VARIABLE} instead.",
    )
    http_allow_unauthenticated: bool = Field(
        False, description="Serve a non-loopback --http-host without a token: every client that reaches it may use it."
    )


def apply(values: HttpFlags, given: frozenset[str]) -> Mapping[str, dict[str, Any] | None]:
    """Raises ConfigError for an API that other machines reach without a token, unless that is allowed."""
    if not values.http_enabled:
        return {"service:admin": None}
    has_token = values.http_token_file or os.environ.get(TOKEN_VARIABLE)
    if not (is_loopback(values.http_host) or has_token or values.http_allow_unauthenticated):
        raise ConfigError(
            f"--http-host {values.http_host} can be reached from other machines: give --http-token-file, "
            "or --http-allow-unauthenticated to admit every client that reaches it, or --no-http"
        )
    return {"service:admin": {"host": values.http_host, "port": values.http_port, "token_file": values.http_token_file}}


def is_loopback(host: str) -> bool:
    """True where only this machine reaches `host`; a name other than localhost counts as reachable from elsewhere."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
