"""The connections to one server."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from lmcache_core import ProtocolError
from lmcache_l2_redis.address import Address
from lmcache_l2_redis.connection import Connection, Dialer
from lmcache_l2_redis.errors import ReplyError
from lmcache_l2_redis.replies import Reply

PIPELINE_MAX: Final = 256
"""Groups of commands that are sent before their replies are read: about a MiB of header pages at most."""


class _Question(NamedTuple):
    commands: Sequence[bytes]
    answer: asyncio.Future[list[Reply]]


class Node:
    """Big values go over a connection that is leased, one at a time; whatever is small goes together with what else is asked
    at that moment.  Belongs to one event loop.  Connections are made when they are first needed and kept; as many as there
    are leases at the same time, and one more."""

    def __init__(self, address: Address, dialer: Dialer, timeout_seconds: float) -> None:
        self.address: Final = address
        self._dialer: Final = dialer
        self._timeout: Final = timeout_seconds
        self._idle: Final[list[Connection]] = []
        self._questions: Final[deque[_Question]] = deque()
        self._asking: asyncio.Task[None] | None = None
        self._closed = False

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[Connection]:
        """A connection of one's own.  It is used again where the block ends orderly or with a `ReplyError`; anything else,
        a cancellation above all, may leave a reply outstanding, and closes it.  Raises ProtocolError where more came than
        was asked for: the order of replies is unknown then."""
        connection = self._usable() or await self._dialer.connect(self.address)
        try:
            yield connection
            if not (connection.channel.is_closed or connection.reader.is_drained):
                raise ProtocolError(f"{self.address} answers more than it was asked")
        except ReplyError:
            self._give_back(connection)
            raise
        except OSError:
            connection.close()
            self._drop_idle()  # they were made before it, and are most likely gone, too
            raise
        except BaseException:
            connection.close()
            raise
        self._give_back(connection)

    async def ask(self, *commands: bytes) -> list[Reply]:
        """The replies to a group of commands that go over one connection without another's between them.  Raises OSError,
        ProtocolError, or what a refused login means."""
        answer: asyncio.Future[list[Reply]] = asyncio.get_running_loop().create_future()
        if self._closed:
            raise ConnectionError(f"{self.address}: closed")
        self._questions.append(_Question(commands, answer))
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask_all())
        return await answer

    def close(self) -> None:
        self._closed = True
        if self._asking is not None:
            self._asking.cancel()
        # A task that is cancelled before its first step takes none, so its waiter is completed here.
        self._fail_waiting()
        self._drop_idle()

    # How.

    async def _ask_all(self) -> None:
        batch: list[_Question] = []
        try:
            while self._questions:
                batch = [self._questions.popleft() for _ in range(min(PIPELINE_MAX, len(self._questions)))]
                try:
                    async with asyncio.timeout(self._timeout), self.lease() as connection:
                        replies = await connection.ask(*(each for question in batch for each in question.commands))
                except Exception as error:  # noqa: BLE001 - it is raised where each of them waits
                    _fail(batch, error)
                    continue
                at = 0
                for commands, answer in batch:
                    if not answer.done():  # or who asked has gone
                        answer.set_result(replies[at : at + len(commands)])
                    at += len(commands)
        finally:
            self._asking = None
            _fail(batch, ConnectionError(f"{self.address}: closed"))
            self._fail_waiting()

    def _fail_waiting(self) -> None:
        _fail(self._questions, ConnectionError(f"{self.address}: closed"))
        self._questions.clear()

    def _usable(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.channel.is_quiet:
                return connection
            connection.close()
        return None

    def _give_back(self, connection: Connection) -> None:
        if self._closed:
            connection.close()
        elif not connection.channel.is_closed and connection.reader.is_drained:
            self._idle.append(connection)
        else:
            connection.close()

    def _drop_idle(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()


def _fail(questions: Iterable[_Question], error: Exception) -> None:
    for question in questions:
        if not question.answer.done():
            # An exception of its own for each: one that many raise at once grows a traceback of all of them.
            question.answer.set_exception(_copy(error))


def _copy(error: Exception) -> Exception:
    if isinstance(error, TimeoutError):
        return TimeoutError("the server does not answer")
    if isinstance(error, OSError):
        return ConnectionError(str(error))
    if isinstance(error, ReplyError):
        return type(error)(str(error))
    return error
