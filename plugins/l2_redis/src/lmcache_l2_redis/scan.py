"""Walks over the names of a backend."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

from lmcache_core import ProtocolError
from lmcache_l2_redis.errors import error_of
from lmcache_l2_redis.replies import ErrorReply, command
from lmcache_l2_redis.topology import Topology

SCAN_COUNT: Final = 1000
"""Names that a server looks at for one answer: some tenths of a millisecond, for which others wait."""
_GLOB: Final = {ord(each): f"\\{each}" for each in "*?[]\\^"}


async def scan(topology: Topology, prefix: str) -> AsyncIterator[Sequence[str]]:
    """All names that begin with the prefix and were there all the time, some of them perhaps more than once.  Raises as
    `Node.ask`, and what refusals mean."""
    pattern = prefix.translate(_GLOB) + "*"
    for node in topology.nodes:
        cursor = b"0"
        while True:
            (reply,) = await node.ask(command("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT))
            match reply:
                case [bytes(cursor), [*names]]:
                    if found := [text for name in names if (text := _text(name)) is not None]:
                        yield found
                case ErrorReply():
                    raise error_of(reply, node.address)
                case _:
                    raise ProtocolError(f"{node.address}: SCAN is answered by {type(reply).__name__}")
            if cursor == b"0":
                break


def _text(name: object) -> str | None:
    """None: no name of ours, which are ASCII behind the prefix."""
    if not isinstance(name, bytes):
        return None
    try:
        return name.decode()
    except UnicodeDecodeError:
        return None
