"""Where a server listens."""

from __future__ import annotations

from typing import NamedTuple, Self

PORT_MAX = 65_535


class Address(NamedTuple):
    """A host and its port, or the path of a Unix socket, which has no port."""

    host: str
    port: int | None

    @classmethod
    def of(cls, text: str, default_port: int) -> Self:
        """From `host`, `host:port`, `[v6]:port` or a bare v6 address.  Raises ValueError with the text in the message."""
        host, port = text.strip(), str(default_port)
        if host.startswith("["):
            host, closed, rest = host[1:].partition("]")
            if not closed or (rest and not rest.startswith(":")):
                raise ValueError(f"'{text}' is not an address; write host:port or [v6 address]:port")
            port = rest[1:] or port
        elif host.count(":") == 1:
            host, _, port = host.partition(":")
        if not host or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= PORT_MAX:
            raise ValueError(f"'{text}' is not an address; write host:port, with a port from 1 to {PORT_MAX}")
        return cls(host, int(port))

    def __str__(self) -> str:
        if self.port is None:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
