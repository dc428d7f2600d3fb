"""The coordinator's settings: flags, and variables LMCACHE_MP_COORDINATOR_*; a flag wins."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from ipaddress import ip_address
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from lmcache_client.errors import ConfigError
from lmcache_core import CommandParser

PREFIX: Final = "LMCACHE_MP_COORDINATOR_"
GIB: Final = 2**30
BLEND: Final = "blend"
Seconds = Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)]


def _gigabytes(text: str) -> str:
    if text == "none":
        return text
    try:
        size = float(text)
    except ValueError:
        size = -1.0
    if not 0 <= size <= GIB:
        raise ValueError(f"expected a number of GiB from 0 to {GIB}, or none")
    return text


class CoordinatorSettings(BaseSettings):
    """Names and defaults of the first nine and of the resync are the seed's."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore", frozen=True)

    host: str = Field("127.0.0.1", min_length=1, description="Where it listens.")
    port: int = Field(9300, ge=0, le=65535, description="TCP port; 0: any free one.")
    instance_timeout: Seconds = Field(30, gt=0, description="Seconds without a heartbeat until a server is dropped.")
    health_check_interval: Seconds = Field(10, description="Seconds between looks for such servers; 0: never.")
    eviction_check_interval: Seconds = Field(5, description="Seconds between evictions from shared L2; 0: never.")
    eviction_ratio: float = Field(
        0.2, ge=0, le=1, allow_inf_nan=False, description="Share of a salt's objects that an eviction takes at least."
    )
    trigger_watermark: float = Field(
        1.0, gt=0, le=1, allow_inf_nan=False, description="Share of a quota above which objects are evicted."
    )
    blend_chunk_size: int = Field(256, ge=1, description="Tokens in a chunk of the CacheBlend directory.")
    blend_probe_stride: int = Field(1, ge=1, description="Positions between probes of the CacheBlend directory.")
    enable_startup_resync: bool = Field(True, description="List shared L2 backends at the start.")
    resync_poll_interval: Seconds = Field(1, gt=0, description="Seconds between looks for a first server to list them.")
    resync_max_wait: Seconds = Field(60, description="Seconds to wait for that server.")
    resync_page_size: int = Field(1000, ge=1, le=65_536, description="Objects in a page of that listing.")
    sync_mode: Literal["live", "freeze"] = Field(
        "live",
        description="freeze: a server refuses stores while it sends everything it has; live: it goes on, with the same result.",
    )
    eviction_policy: str = Field(
        "LRU", min_length=1, description="Which objects of a salt go first: the name of an installed eviction policy."
    )
    default_quota_gb: Annotated[str, AfterValidator(_gigabytes)] = Field(
        "0", description="GiB of shared L2 that a salt without a quota may use; none: as much as there is."
    )
    state: str = Field(
        "lmcache-coordinator.db",
        min_length=1,
        description="Where quotas and secrets are kept: a file, `etcd:URL,URL`, `redis:URL`, or `memory` until the end.",
    )
    token_file: str | None = Field(None, min_length=1, description="File with Bearer tokens and their scopes.")
    member_token_file: str | None = Field(
        None,
        min_length=1,
        description="File with the token that is sent to the admin API of servers that keep no journals, to delete. Any client "
        "that may register gets it.",
    )
    tls_cert: str | None = Field(
        None, min_length=1, description="PEM file with the certificate; it answers https then."
    )
    tls_key: str | None = Field(None, min_length=1, description="PEM file with its key.")
    tls_client_ca: str | None = Field(
        None, min_length=1, description="PEM file; only clients with a certificate from it are let in."
    )
    tls_bind_identity: bool = Field(
        False, description="A client speaks only for the instance whose id is a name in its certificate."
    )
    allow_unauthenticated: bool = Field(False, description="Listen on a host that other machines reach without tokens.")

    @property
    def default_quota_bytes(self) -> int | None:
        return None if self.default_quota_gb == "none" else round(float(self.default_quota_gb) * GIB)


_SWITCHES: Final[dict[str, Any]] = {
    "enable_startup_resync": argparse.BooleanOptionalAction,
    "allow_unauthenticated": "store_true",
    "tls_bind_identity": "store_true",
}
_METAVARS: Final = {
    "SECONDS": ("timeout", "interval", "wait"),
    "FILE": ("file", "cert", "key", "ca", "state"),
    "PORT": ("port",),
    "HOST": ("host",),
    "GIB": ("gb",),
    "SHARE": ("ratio", "watermark"),
    "MODE": ("mode",),
    "NAME": ("policy",),
}
"""By the last word of a setting's name; others are numbers."""
_ALIASES: Final = {"blend_chunk_size": ["--chunk-size"], "sync_mode": ["--coordinator-sync-mode"]}


def parser() -> CommandParser:
    """A flag for each setting, with no defaults: what is not given comes from the environment."""
    about = (
        "Run the coordinator of a fleet of servers. Each flag has a variable of the environment, such as "
        f"{PREFIX}PORT for --port; a flag wins."
    )
    made = CommandParser("lmcache coordinator", about)
    for name, field in CoordinatorSettings.model_fields.items():
        flags = [f"--{name.replace('_', '-')}", *_ALIASES.get(name, [])]
        default = "" if field.default in (None, False) else f" (default: {field.default})"
        about = f"{field.description}{default}"
        kind = {"action": _SWITCHES[name]} if name in _SWITCHES else {"metavar": _metavar(name)}
        made.add_argument(*flags, dest=name, default=argparse.SUPPRESS, help=about, **kind)
    return made


def _metavar(name: str) -> str:
    return next((metavar for metavar, words in _METAVARS.items() if name.rpartition("_")[2] in words), "N")


def read_settings(arguments: Sequence[str]) -> CoordinatorSettings:
    """Raises ConfigError, naming the flag or the variable."""
    given = vars(parser().parse_all(arguments))
    try:
        settings = CoordinatorSettings(**given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        subject = f"--{name.replace('_', '-')}" if name in given else PREFIX + name.upper()
        message = str(first["msg"]).removeprefix("Value error, ")
        raise ConfigError(f"{subject} {first.get('input')!r}: {message[:1].lower()}{message[1:]}") from None
    if not (is_loopback(settings.host) or settings.token_file or settings.allow_unauthenticated):
        raise ConfigError(
            f"--host {settings.host} can be reached from other machines: give --token-file, or --allow-unauthenticated to let "
            "every client in"
        )
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise ConfigError("--tls-cert and --tls-key belong together: give both, or neither")
    if settings.tls_client_ca and not settings.tls_cert:
        raise ConfigError("--tls-client-ca needs --tls-cert and --tls-key")
    if settings.tls_bind_identity and not settings.tls_client_ca:
        raise ConfigError("--tls-bind-identity needs --tls-client-ca: without it clients have no certificates")
    return settings


def view_settings(settings: CoordinatorSettings, installed: Collection[str]) -> Mapping[str, Mapping[str, Any]]:
    """Of views by name.  Raises ConfigError for flags of one that is not installed."""
    blend = {"chunk_size": settings.blend_chunk_size, "probe_stride": settings.blend_probe_stride}
    if BLEND in installed:
        return {BLEND: blend}
    for name, value in blend.items():
        if value != CoordinatorSettings.model_fields[f"blend_{name}"].default:
            raise ConfigError(
                f"--blend-{name.replace('_', '-')}: no installed plugin keeps a CacheBlend directory; leave the flag out, or "
                f"install one that offers a coordinator view called '{BLEND}'"
            )
    return {}


def is_loopback(host: str) -> bool:
    """True where only this machine reaches `host`; a name other than localhost counts as reachable from elsewhere."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
