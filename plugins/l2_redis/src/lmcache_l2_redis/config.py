"""Settings of the `redis` adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import Field, SecretStr, model_validator

from lmcache_core import HEADER_BYTES
from lmcache_l2_redis.address import Address
from lmcache_l2_redis.url import ServerUrl
from lmcache_object_remote import SharedSettings

PORT: Final = 6379
SENTINEL_PORT: Final = 26379
HOST: Final = "localhost"
PIECE_BYTES: Final = 256 << 20
PIECE_BYTES_MIN: Final = 64 << 10
assert PIECE_BYTES_MIN >= HEADER_BYTES, "the first piece holds the header page"
OWNER_WAIT_SHARE: Final = 0.2
"""Of a lease, for which a start may wait for a sign of life of another owner."""

Names = Annotated[tuple[str, ...], Field(max_length=64)]


class RedisSettings(SharedSettings):
    """Which server, who one is there, and how much may be kept."""

    host: Annotated[
        str | None, Field(description="Host of a single server; localhost where nothing else is named.")
    ] = None
    port: Annotated[int | None, Field(ge=1, le=65535, description="Its port; 6379 if left out.")] = None
    url: Annotated[
        SecretStr | None,
        Field(
            description="The same in one: redis://user:password@host:port/database, rediss:// with TLS, unix:///path."
        ),
    ] = None
    socket_path: Annotated[Path | None, Field(description="Unix socket of a single server, instead of a host.")] = None
    sentinels: Annotated[
        Names, Field(description="Sentinels, as host:port, that know which server is the master.")
    ] = ()
    master_name: Annotated[str | None, Field(description="What the sentinels call the master.")] = None
    nodes: Annotated[Names, Field(description="Some nodes of a cluster, as host:port; the others are found.")] = ()
    username: Annotated[str | None, Field(description="User of the access list; none: the default user.")] = None
    password: Annotated[SecretStr | None, Field(description="Password of the user.")] = None
    password_file: Annotated[Path | None, Field(description="File that has the password in its first line.")] = None
    sentinel_username: Annotated[str | None, Field(description="User at the sentinels.")] = None
    sentinel_password: Annotated[SecretStr | None, Field(description="Password at the sentinels.")] = None
    database: Annotated[int, Field(ge=0, description="Number of the database; a cluster has 0 only.")] = 0
    key_prefix: Annotated[
        str, Field(max_length=200, description="What the names of all objects begin with, as it is.")
    ] = "lmcache/"
    ttl_seconds: Annotated[
        int | None, Field(ge=1, description="Seconds after a store until the server forgets the object; none: never.")
    ] = None
    value_piece_bytes: Annotated[
        int,
        Field(
            ge=PIECE_BYTES_MIN,
            description="Longest value; an object that is longer is kept in several. A server takes 512 MiB by "
            "default, a proxy often less.",
        ),
    ] = PIECE_BYTES
    num_connections: Annotated[
        int, Field(ge=1, le=1024, description="Objects on their way at the same time, each on a connection.")
    ] = 8
    max_capacity_gb: Annotated[
        float, Field(ge=0, allow_inf_nan=False, description="Most that is kept, in GiB; 0 means no limit.")
    ] = 0.0
    recount_seconds: Annotated[
        float,
        Field(
            ge=1,
            allow_inf_nan=False,
            description="How often what is kept is counted anew, where others or the server itself change it.",
        ),
    ] = 300.0
    server_persists: Annotated[
        bool,
        Field(description="The server writes to disk what it is given, and evicts nothing: objects count as durable."),
    ] = False
    tls: Annotated[bool, Field(description="Speak TLS with servers and sentinels.")] = False
    tls_ca: Annotated[Path | None, Field(description="Certificates to trust; none: those of the system.")] = None
    tls_cert: Annotated[Path | None, Field(description="This server's own certificate, where one is asked for.")] = None
    tls_key: Annotated[Path | None, Field(description="The key of tls_cert.")] = None
    tls_verify: Annotated[
        bool,
        Field(
            description="Check the other side's certificate and name. Off, a third party on the network can read and "
            "alter data."
        ),
    ] = True
    tls_server_name: Annotated[
        str | None, Field(description="Name in the certificate, where it is not the host's.")
    ] = None
    connect_timeout_seconds: Annotated[
        float, Field(gt=0, le=60, description="How long making a connection may take, with TLS and password.")
    ] = 5.0
    timeout_seconds: Annotated[
        float, Field(ge=1, le=600, description="How long one operation may take, from its start and with all attempts.")
    ] = 20.0
    persist_enabled: Annotated[
        bool, Field(description="Must stay on: the server keeps objects when this one stops. See ttl_seconds.")
    ] = True

    @property
    def capacity_bytes(self) -> int | None:
        """None: no limit."""
        return int(self.max_capacity_gb * 2**30) if self.max_capacity_gb else None

    @property
    def server_url(self) -> ServerUrl:
        """What the field `url` says; nothing where it was left out."""
        return ServerUrl() if self.url is None else ServerUrl.of(self.url.get_secret_value())

    @property
    def speaks_tls(self) -> bool:
        return self.tls or self.server_url.tls

    @property
    def single(self) -> Address:
        """Of the one server, where there are neither sentinels nor nodes."""
        if self.socket_path is not None:
            return Address(str(self.socket_path), None)
        return self.server_url.address or Address(self.host or HOST, self.port or PORT)

    @property
    def sentinel_addresses(self) -> tuple[Address, ...]:
        return tuple(Address.of(text, SENTINEL_PORT) for text in self.sentinels)

    @property
    def node_addresses(self) -> tuple[Address, ...]:
        return tuple(Address.of(text, PORT) for text in self.nodes)

    @model_validator(mode="after")
    def _names_one_place(self) -> Self:
        named = [
            field
            for field, given in (
                ("host", self.host is not None or self.port is not None), ("url", self.url is not None),
                ("socket_path", self.socket_path is not None), ("sentinels", bool(self.sentinels)),
                ("nodes", bool(self.nodes)),
            )
            if given
        ]  # fmt: skip
        if len(named) > 1:
            raise ValueError(f"{' and '.join(named)} name different places; keep one of them")
        if bool(self.sentinels) != (self.master_name is not None):
            raise ValueError("sentinels and master_name belong together; give both or none")
        if self.nodes and self.database:
            raise ValueError("a cluster (nodes) has database 0 only; leave database out")
        if (self.password is None and self.password_file is None) and self.username is not None:
            raise ValueError("username needs a password or a password_file")
        if self.password is not None and self.password_file is not None:
            raise ValueError("password and password_file are both given; keep one of them")
        if self.sentinel_username is not None and self.sentinel_password is None:
            raise ValueError("sentinel_username needs a sentinel_password")
        if not self.persist_enabled:
            raise ValueError(
                "persist_enabled must stay true: the server keeps objects when this one stops; let them expire with "
                "ttl_seconds, or delete what begins with key_prefix"
            )
        return self

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        _ = (self.sentinel_addresses, self.node_addresses)  # raise ValueError
        url = self.server_url
        if url.password is not None and (self.password is not None or self.password_file is not None):
            raise ValueError("url has a password and there is another; keep one of them")
        if url.database is not None and self.database:
            raise ValueError("url has a database and there is another; keep one of them")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key belong together; give both or none")
        given = [name for name in ("tls_ca", "tls_cert", "tls_server_name") if getattr(self, name) is not None]
        if not self.speaks_tls and (given or not self.tls_verify):
            raise ValueError(f"{given[0] if given else 'tls_verify'} has no effect without tls; set tls to true")
        if self.speaks_tls and self.single.port is None:
            raise ValueError("a Unix socket (socket_path) has no TLS; leave tls out")
        if self.owner_lease_seconds * OWNER_WAIT_SHARE > self.timeout_seconds:
            raise ValueError(
                f"a start waits up to {OWNER_WAIT_SHARE:g} of owner_lease_seconds, which is more than timeout_seconds "
                f"({self.timeout_seconds:g}); raise that, or shorten the lease"
            )
        return self
