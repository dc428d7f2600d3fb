"""The owner's record, changed by compare-and-set only."""

from __future__ import annotations

from typing import Final

from lmcache_core import ProtocolError
from lmcache_l2_redis.client import Client
from lmcache_l2_redis.replies import command
from lmcache_object_remote import OWNER_NAME

_REPLACE: Final = (
    "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('SET', KEYS[1], ARGV[2]) return 1 end return 0"
)
"""Scripts run alone, so nothing comes between the comparison and the change."""


class RedisOwnerRecords:
    """Belongs to one event loop.  Raises as `Client.ask`."""

    def __init__(self, client: Client, prefix: str) -> None:
        self._client: Final = client
        self._name: Final = (prefix + OWNER_NAME).encode()

    async def read(self) -> bytes | None:
        (reply,) = await self._client.ask(self._name, command("GET", self._name))
        if reply is None or isinstance(reply, bytes):
            return reply
        raise ProtocolError(f"GET is answered by {type(reply).__name__}")

    async def write(self, data: bytes, *, replaces: bytes | None) -> bool:
        if replaces is None:
            request = command("SET", self._name, data, "NX")
        else:
            request = command("EVAL", _REPLACE, 1, self._name, replaces, data)
        (reply,) = await self._client.ask(self._name, request)
        return reply not in (None, 0)

    async def remove(self) -> None:
        await self._client.ask(self._name, command("UNLINK", self._name))
