"""From settings to an adapter that is connected."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

from lmcache_core import AdapterContext, ResourceError
from lmcache_l2_redis.adapter import RedisAdapter
from lmcache_l2_redis.address import Address
from lmcache_l2_redis.config import RedisSettings
from lmcache_l2_redis.connection import Dialer, Login, Resolve
from lmcache_l2_redis.node import Node
from lmcache_l2_redis.topology import Cluster, SentinelMaster, SingleServer, Topology

PASSWORD_FILE_BYTES_MAX: Final = 4096


def open_redis(settings: RedisSettings, context: AdapterContext) -> RedisAdapter:
    """Connect, find the servers, and learn in the background what there is.  Raises ResourceError that says what is not
    available and what to do."""
    tls = _tls(settings, context) if settings.speaks_tls else None
    login = _login(settings, context)
    at_sentinels = Login(
        settings.sentinel_username,
        None if settings.sentinel_password is None else settings.sentinel_password.get_secret_value(),
        client_name=login.client_name,
    )

    def new_topology(resolve: Resolve) -> Topology:
        def dialer(who: Login) -> Dialer:
            return Dialer(who, tls, settings.connect_timeout_seconds, resolve, settings.tls_server_name)

        def new_node(address: Address) -> Node:
            return Node(address, dialer(login), settings.timeout_seconds)

        if settings.nodes:
            # Connecting and answering, each.
            return Cluster(new_node, settings.node_addresses, patience_seconds=2 * settings.connect_timeout_seconds)
        if settings.sentinels:
            name = settings.master_name or ""
            return SentinelMaster(new_node, settings.sentinel_addresses, name, dialer(at_sentinels))
        return SingleServer(new_node, settings.single)

    return RedisAdapter(settings, context, new_topology, _place(settings))


def _place(settings: RedisSettings) -> str:
    if settings.nodes:
        return f"cluster at {', '.join(map(str, settings.node_addresses))}"
    if settings.sentinels:
        return f"master '{settings.master_name}' of {', '.join(map(str, settings.sentinel_addresses))}"
    return str(settings.single)


def _login(settings: RedisSettings, context: AdapterContext) -> Login:
    url = settings.server_url
    password = url.password
    if settings.password is not None:
        password = settings.password.get_secret_value()
    elif settings.password_file is not None:
        password = _first_line(settings.password_file, context)
    # Without a space: a server refuses a name with one.
    name = "lmcache-" + "".join(letter if letter.isalnum() else "-" for letter in context.instance_id)
    return Login(settings.username or url.username, password, settings.database or url.database or 0, name[:64])


def _first_line(path: Path, context: AdapterContext) -> str:
    try:
        with path.open("rb") as file:
            line = file.read(PASSWORD_FILE_BYTES_MAX).split(b"\n")[0].rstrip(b"\r").decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ResourceError(
            f"{context.name}: password_file '{path}' cannot be read ({reason}); name a file with the password in its "
            "first line"
        ) from None
    if not line:
        raise ResourceError(f"{context.name}: password_file '{path}' has no password in its first line")
    return line


def _tls(settings: RedisSettings, context: AdapterContext) -> ssl.SSLContext:
    try:
        tls = ssl.create_default_context(cafile=None if settings.tls_ca is None else str(settings.tls_ca))
        if not settings.tls_verify:
            tls.check_hostname = False
            tls.verify_mode = ssl.CERT_NONE
            context.logger.warning(
                "tls_verify is off, a third party on the network can read and alter data adapter=%s", context.name
            )
        if settings.tls_cert is not None and settings.tls_key is not None:
            tls.load_cert_chain(settings.tls_cert, settings.tls_key, password=lambda: b"")
    except (OSError, ValueError) as error:
        named = [str(path) for path in (settings.tls_ca, settings.tls_cert, settings.tls_key) if path is not None]
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or "unusable"
        raise ResourceError(
            f"{context.name}: of {', '.join(named)} not all can be used for TLS ({reason}); tls_ca, tls_cert and tls_key "
            "are PEM files, the key without a password"
        ) from None
    return tls
