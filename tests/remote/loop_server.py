"""A TCP server of a test's own, whose connections are coroutines on an event loop in one thread."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Final, Self, TypeVar

HOST: Final = "127.0.0.1"
READ_BYTES: Final = 64 << 10
TIMEOUT_SECONDS: Final = 30.0
ACCEPT_STEPS: Final = 4
"""Turns of the event loop from a socket that is accepted to the coroutine that serves it, and one more."""
RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)

Value = TypeVar("Value")


def reset(writer: asyncio.StreamWriter) -> None:
    """End a connection with RST, so that the peer sees an error and no orderly end.  What was not sent yet is lost."""
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    writer.transport.abort()


class LoopServer(ABC):
    """Listens on a free port of the loopback interface while it is entered.  Its port stays its own when it refuses
    connections: a socket that is bound to it and never listens holds it.  Public methods are for the test's thread."""

    def __init__(self) -> None:
        self._holder = _bound(0)
        self.port: Final[int] = self._holder.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="test-proxy", daemon=True)
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._connected = 0

    @property
    def endpoint(self) -> str:
        """`host:port`."""
        return f"{HOST}:{self.port}"

    @property
    def connected(self) -> int:
        """Connections that were accepted so far."""
        return self._connected

    @abstractmethod
    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, from its start to its end, on the loop.  Cancelled when the server ends it."""

    async def listen(self) -> None:
        """On the loop.  Harmless where it listens."""
        if self._server is None:
            self._server = await asyncio.start_server(self._accepted, sock=_bound(self.port), limit=READ_BYTES)

    async def refuse(self) -> None:
        """On the loop: listen no more, and reset what is connected."""
        server, self._server = self._server, None
        if server is not None:
            # Connections that the loop has just accepted begin, and end at once: an asyncio.Server that is closed before
            # they begin leaves their sockets open.
            for sock in server.sockets:
                self._loop.remove_reader(sock.fileno())
            for _ in range(ACCEPT_STEPS):
                await asyncio.sleep(0)
            server.close()
        connections = list(self._connections)
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    def call(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Run it on the loop, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT_SECONDS)

    def __enter__(self) -> Self:
        self._thread.start()
        self.call(self.listen())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.call(self.refuse())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_SECONDS)
        self._loop.close()
        self._holder.close()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None:
            reset(writer)
            return
        connection = asyncio.current_task()
        assert connection is not None
        self._connections.add(connection)
        self._connected += 1
        try:
            await self.serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a peer went away: that is its right, and often the point
        except asyncio.CancelledError:
            pass  # refused: the task's end is what `refuse` waits for
        finally:
            self._connections.discard(connection)
            reset(writer)


def _bound(port: int) -> socket.socket:
    sock = socket.socket()
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((HOST, port))
    except OSError:
        sock.close()
        raise
    return sock
