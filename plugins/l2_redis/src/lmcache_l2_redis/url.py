"""A server, a user and a database in one line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Self
from urllib.parse import unquote, urlsplit

from lmcache_l2_redis.address import Address

PORT: Final = 6379
_SCHEMES: Final = {"redis": False, "valkey": False, "rediss": True, "valkeys": True}


@dataclass(frozen=True, slots=True)
class ServerUrl:
    """What a URL says.  Nothing of a user is shown by `repr`."""

    address: Address | None = None
    tls: bool = False
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    database: int | None = None

    @classmethod
    def of(cls, text: str) -> Self:
        """Raises ValueError, with nothing of the URL in the message: there may be a password in it."""
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:
            raise ValueError("url cannot be read; write redis://user:password@host:port/database") from None
        username = unquote(parts.username) if parts.username else None
        password = unquote(parts.password) if parts.password is not None else None
        if parts.query or parts.fragment:
            raise ValueError("url has a part behind '?' or '#'; use fields instead")
        if username is not None and password is None:
            raise ValueError("url names a user without a password; write user:password@, or :password@")
        if parts.scheme == "unix":
            if not parts.path or parts.hostname:
                raise ValueError("url names no Unix socket; write unix:///path/to/socket")
            return cls(Address(unquote(parts.path), None), False, username, password)
        if parts.scheme not in _SCHEMES or not parts.hostname:
            raise ValueError(f"url must begin with {'://, '.join(_SCHEMES)}:// and a host, or with unix:///")
        database = parts.path.strip("/")
        if database and not (database.isascii() and database.isdigit()):
            raise ValueError("url has a path that is not the number of a database")
        address = Address(parts.hostname, port or PORT)
        return cls(address, _SCHEMES[parts.scheme], username, password, int(database) if database else None)
