"""Commands about one name, sent to the node that has it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from lmcache_core import ProtocolError
from lmcache_l2_redis.connection import Connection
from lmcache_l2_redis.errors import PassingError, RedirectedError, ReplyError, error_of
from lmcache_l2_redis.node import Node
from lmcache_l2_redis.replies import Argument, ErrorReply, Passed, Reply, command, command_around
from lmcache_l2_redis.topology import Topology

REDIRECTS_MAX: Final = 5
ASKING: Final = command("ASKING")
Result = TypeVar("Result")


class Client:
    """Belongs to one event loop.  A failure because the server is gone, or is a replica now, makes the next attempt
    ask anew who has what; trying again is the caller's."""

    def __init__(self, topology: Topology) -> None:
        self.topology: Final = topology
        self._is_doubtful = False

    async def ask(self, name: bytes, *commands: bytes) -> list[Reply]:
        """The replies to commands that are all about this name.  Raises what the first error among them means, OSError,
        ProtocolError."""

        async def use(node: Node, asking: bool) -> list[Reply]:
            prefix = ASKING if asking else b""
            count = 2 if asking else 1
            sent = [part for each in commands for part in ((prefix, each) if asking else (each,))]
            replies = (await node.ask(*sent))[count - 1 :: count]
            for reply in replies:
                _raise_for(reply, node)
            return replies

        return await self._routed(name, use)

    async def get_into(self, name: bytes, into: memoryview, passed: Passed) -> int | None:
        """How long the value is, which is then at the start of `into`, and was shown to `passed`; None: there is none.
        What is longer than `into` is not taken.  Raises as `ask`."""

        async def use(node: Node, asking: bool) -> int | None:
            async with node.lease() as connection:
                await _say_asking(connection, asking)
                await connection.channel.send(command("GET", name))
                length = await connection.reader.bulk_length()
                if isinstance(length, ErrorReply):
                    raise error_of(length, node.address)
                if length is None:
                    return None
                if length > len(into):
                    connection.close()  # cheaper than reading a value that is not needed
                    return length
                await connection.reader.bulk_into(into[:length], passed)
                return length

        return await self._routed(name, use)

    async def set_value(self, name: bytes, value: memoryview, *options: Argument) -> bool:
        """SET with these options.  False: with NX, something is there.  Raises as `ask`."""
        head, tail = command_around(("SET", name), len(value), options)

        async def use(node: Node, asking: bool) -> bool:
            async with node.lease() as connection:
                await _say_asking(connection, asking)
                await connection.channel.send(head, value, tail)
                reply = await connection.reader.reply()
                _raise_for(reply, node)
                return reply is not None

        return await self._routed(name, use)

    async def _routed(self, name: bytes, use: Callable[[Node, bool], Awaitable[Result]]) -> Result:
        if self._is_doubtful:
            self._is_doubtful = False  # first: whatever raises doubts while they are being settled is not settled by it
            try:
                await self.topology.learn()
            except (OSError, ReplyError, ProtocolError):
                self._is_doubtful = True  # what was known may be right: no node contradicted it
            except BaseException:
                self._is_doubtful = True
                raise
        node, asking = self.topology.node_of(name), False
        try:
            for _ in range(REDIRECTS_MAX):
                try:
                    return await use(node, asking)
                except RedirectedError as redirection:
                    node = await self.topology.redirected(redirection)
                    asking = redirection.asks_once
                    self._is_doubtful |= not asking
            raise PassingError(f"TRYAGAIN redirected {REDIRECTS_MAX} times, the slots of the cluster are moving")
        except (OSError, PassingError):
            self._is_doubtful = True
            raise


async def _say_asking(connection: Connection, asking: bool) -> None:
    if asking:
        await connection.ask_one(ASKING)


def _raise_for(reply: Reply, node: Node) -> None:
    if isinstance(reply, ErrorReply):
        raise error_of(reply, node.address)
