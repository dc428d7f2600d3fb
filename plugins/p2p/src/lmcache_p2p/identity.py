"""Who a server is to its peers: a key pair for each start, whose public half every member knows through the coordinator."""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import urlsplit

import zmq
from zmq.utils import z85

from lmcache_client.errors import ProtocolError

KEY_BYTES: Final = 32


class KeyPair(NamedTuple):
    """As libzmq takes them: 40 printable characters each."""

    public: bytes
    secret: bytes

    @classmethod
    def new(cls) -> KeyPair:
        return cls(*zmq.curve_keypair())


class PeerUrl(NamedTuple):
    """What a member registers: where it listens, and its public key."""

    endpoint: str
    key: bytes
    """Public, as libzmq takes it."""

    @classmethod
    def read(cls, url: str) -> PeerUrl:
        """Raises ProtocolError."""
        try:
            parts = urlsplit(url)
            raw = bytes.fromhex(parts.fragment)
            endpoint = f"tcp://{parts.netloc}"
            if parts.scheme != "tcp" or not parts.hostname or parts.port is None or len(raw) != KEY_BYTES:
                raise ValueError("not tcp://host:port#key")
        except ValueError as error:
            raise ProtocolError(f"{url[:200]!r} is not the address of a peer: {error}") from None
        return cls(endpoint, z85.encode(raw))

    def __str__(self) -> str:
        return f"{self.endpoint}#{z85.decode(self.key).hex()}"
