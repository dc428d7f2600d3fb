"""The flags of peers, and the settings of the service and of the channel `tcp`."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from lmcache_core import ConfigError, PluginSettings

PLACES: Final = {"shm": 0, "tcp": 2}
"""Of transfer channels in the order of `auto`: shared memory first and sockets last, every other one between them."""


class Address(NamedTuple):
    host: str
    port: int


def is_loopback(host: str) -> bool:
    """Can other machines not reach it?"""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def address_of(url: str) -> Address:
    """Raises ValueError for anything but tcp://host:port."""
    parts = urlsplit(url)
    if parts.scheme != "tcp" or not parts.hostname or not parts.port or parts.path or parts.query or parts.fragment:
        raise ValueError(f"'{url}' is not an address of peers; expected one such as tcp://10.0.0.7:7600")
    return Address(parts.hostname, parts.port)


LookupTimeout = Annotated[float, Field(gt=0, le=60, allow_inf_nan=False)]
LoadTimeout = Annotated[float, Field(gt=0, le=600, allow_inf_nan=False)]
LeasedRatio = Annotated[float, Field(gt=0, le=1)]


class PeerSettings(PluginSettings):
    advertise_url: str
    listen_url: str
    lookup_timeout: LookupTimeout = 1.0
    transfer_engine: str = "auto"
    max_leased_ratio: LeasedRatio = 0.25
    lease_seconds: float = Field(15.0, ge=1, le=60, allow_inf_nan=False)
    peers_per_lookup: int = Field(4, ge=1, le=64)


class TcpSettings(PluginSettings):
    port: int = Field(0, ge=0, le=65_535)
    load_timeout: LoadTimeout = 30.0
    plaintext: bool = False
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None

    @model_validator(mode="after")
    def _fit(self) -> TcpSettings:
        """Raises ValueError."""
        if (self.tls_cert is None) != (self.tls_key is None) or (self.tls_ca is not None and self.tls_cert is None):
            raise ValueError("tls_cert (--p2p-tls-cert) and tls_key (--p2p-tls-key) go together, and tls_ca needs both")
        if self.plaintext and self.tls_cert is not None:
            raise ValueError("plaintext (--p2p-plaintext) and tls_cert (--p2p-tls-cert) exclude each other")
        return self


_PEER, _TCP = PeerSettings.model_fields, TcpSettings.model_fields


class PeerFlags(PluginSettings):
    """Peers."""

    p2p_advertise_url: str | None = Field(
        None,
        json_schema_extra={"metavar": "URL"},
        description="Address at which other servers of the fleet reach this one, such as tcp://10.0.0.7:7600; turns reading "
        "out of each other's memory on. Needs --coordinator-url.",
    )
    p2p_listen_url: str | None = Field(
        None,
        json_schema_extra={"metavar": "URL"},
        description="Address to listen at; default: the advertised one.",
    )
    p2p_lookup_timeout: LookupTimeout = Field(
        _PEER["lookup_timeout"].default, description="Seconds that peers have to answer a lookup."
    )
    p2p_load_timeout: LoadTimeout = Field(
        _TCP["load_timeout"].default, description="Seconds without a byte after which a read is abandoned."
    )
    p2p_transfer_engine: str = Field(
        _PEER["transfer_engine"].default,
        description="Transfer channel: auto, or the name of one, such as tcp. auto: the fastest that both servers have.",
    )
    p2p_max_leased_ratio: LeasedRatio = Field(
        _PEER["max_leased_ratio"].default, description="Share of L1 that other servers may read at one time."
    )
    p2p_tcp_port: int = Field(
        0,
        ge=0,
        le=65_535,
        description="Port at which the channel tcp sends chunks, beside that of --p2p-listen-url; 0: any that is free.",
    )
    p2p_plaintext: bool = Field(
        False,
        description="Let the channel tcp send chunks unencrypted to other machines: for networks that are trusted.",
    )
    p2p_tls_cert: Path | None = Field(
        None,
        json_schema_extra={"metavar": "FILE"},
        description="Certificate that the channel tcp shows, PEM; default: one that is made at the start.",
    )
    p2p_tls_key: Path | None = Field(
        None, json_schema_extra={"metavar": "FILE"}, description="Private key of --p2p-tls-cert, PEM."
    )
    p2p_tls_ca: Path | None = Field(
        None,
        json_schema_extra={"metavar": "FILE"},
        description="Certificates of the authority that the certificates of all peers must come from, PEM.",
    )

    @field_validator("p2p_advertise_url", "p2p_listen_url")
    @classmethod
    def _are_addresses(cls, url: str | None) -> str | None:
        if url is not None:
            address_of(url)
        return url

    @field_validator("p2p_advertise_url")
    @classmethod
    def _is_reached(cls, url: str | None) -> str | None:
        if url is not None and address_of(url).host in ("0.0.0.0", "::"):
            raise ValueError(f"'{url}' is every address of a machine; give the one at which others reach this server")
        return url


def apply(values: PeerFlags, given: frozenset[str]) -> Mapping[str, dict[str, Any]]:
    """The service and the adapter where an address is given.  Raises ConfigError for other flags without one."""
    if values.p2p_advertise_url is None:
        if others := sorted(name for name in given if name != "p2p_advertise_url"):
            flag = others[0].replace("_", "-")
            raise ConfigError(f"--{flag} has no effect without --p2p-advertise-url; give both or none")
        return {}
    return {
        "service:p2p": {
            "advertise_url": values.p2p_advertise_url,
            "listen_url": values.p2p_listen_url or values.p2p_advertise_url,
            "lookup_timeout": values.p2p_lookup_timeout,
            "transfer_engine": values.p2p_transfer_engine,
            "max_leased_ratio": values.p2p_max_leased_ratio,
        },
        "transfer_channel:tcp": {
            "port": values.p2p_tcp_port,
            "load_timeout": values.p2p_load_timeout,
            "plaintext": values.p2p_plaintext,
            "tls_cert": values.p2p_tls_cert,
            "tls_key": values.p2p_tls_key,
            "tls_ca": values.p2p_tls_ca,
        },
        "l2_adapter:p2p": {},
    }
