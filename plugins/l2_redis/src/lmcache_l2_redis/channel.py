"""One socket on an event loop, plain or TLS: bytes go between it and the caller's memory, and nowhere else.

`asyncio`'s own transports copy what the kernel does not take at once, and hand out what they received in buffers of their own.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
from collections.abc import Callable
from typing import Final

STEPS_MAX: Final = 64
"""Calls of the kernel before others on the loop have their turn."""
LOW_WATER_BYTES: Final = 256 << 10
"""Of a big value so much is waited for at a time: each time that the loop wakes up costs as much as copying some 50 KiB."""
_PARTS_MAX: Final = 512

Step = Callable[[], bool]
"""Tries once without waiting: True when all is done.  Raises what says that it would have to wait."""


class Channel:
    """Belongs to its loop; one sender or receiver at a time.  Raises ConnectionError (or another OSError) where the peer is
    gone.  A cancelled call leaves the socket in the middle of something: close it then."""

    def __init__(self, sock: socket.socket) -> None:
        """Takes over the socket, which does not block."""
        self._sock: Final = sock
        self._is_tls: Final = isinstance(sock, ssl.SSLSocket)
        self._loop: Final = asyncio.get_running_loop()
        self._poll: Final = select.poll()
        self._poll.register(sock, select.POLLIN)

    async def handshake(self) -> None:
        """Of TLS; nothing else comes before it."""
        if isinstance(self._sock, ssl.SSLSocket):
            await self._carry(self._shake_hands, writes=True)

    async def send(self, *parts: bytes | memoryview) -> None:
        """All of them, one behind the other.  Their memory is read until this ends."""
        left = [memoryview(part) for part in parts if len(part)]

        def step() -> bool:
            sent = self._sock.send(left[0]) if self._is_tls else self._sock.sendmsg(left[:_PARTS_MAX])
            while left and sent >= len(left[0]):
                sent -= len(left.pop(0))
            if left:
                left[0] = left[0][sent:]
            return not left

        if left:
            await self._carry(step, writes=True)

    async def receive(self, into: memoryview) -> int:
        got = 0

        def step() -> bool:
            nonlocal got
            got = self._received(into)
            return True

        await self._carry(step, writes=False)
        return got

    async def fill(self, into: memoryview) -> None:
        at = 0
        low_water = 1

        def step() -> bool:
            nonlocal at, low_water
            at += self._received(into[at:])
            if low_water > 1 and len(into) - at < LOW_WATER_BYTES:
                low_water = self._wake_at(1)
            return at == len(into)

        if len(into) >= 2 * LOW_WATER_BYTES and not self._is_tls:
            low_water = self._wake_at(LOW_WATER_BYTES)
        if len(into):
            await self._carry(step, writes=False)

    @property
    def is_quiet(self) -> bool:
        """Is it open, with nothing to read?  What an unused connection has to say is that it is gone."""
        if isinstance(self._sock, ssl.SSLSocket) and self._sock.fileno() >= 0 and self._sock.pending():
            return False
        return self._sock.fileno() >= 0 and not self._poll.poll(0)

    @property
    def is_closed(self) -> bool:
        return self._sock.fileno() < 0

    def close(self) -> None:
        if self._sock.fileno() >= 0:
            self._let_go()
            self._sock.close()

    # How.

    def _shake_hands(self) -> bool:
        assert isinstance(self._sock, ssl.SSLSocket)
        self._sock.do_handshake()
        return True

    def _wake_at(self, count: int) -> int:
        """Be told of bytes to read when there are so many of them."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
        return count

    def _received(self, into: memoryview) -> int:
        got = self._sock.recv_into(into)
        if not got:
            raise ConnectionResetError("the server closed the connection")
        return got

    async def _carry(self, step: Step, *, writes: bool) -> None:
        done: asyncio.Future[None] = self._loop.create_future()
        waits_to_write: bool | None = None

        def attempt() -> None:
            nonlocal waits_to_write
            if done.done():
                return
            try:
                for _ in range(STEPS_MAX):
                    if step():
                        done.set_result(None)
                        return
                self._loop.call_soon(attempt)
                return
            except ssl.SSLWantReadError:
                wanted = False
            except ssl.SSLWantWriteError:
                wanted = True
            except (BlockingIOError, InterruptedError):
                wanted = writes
            except BaseException as error:  # noqa: BLE001 - it is raised where the caller waits
                done.set_exception(error)
                return
            if wanted != waits_to_write:
                self._let_go()
                (self._loop.add_writer if wanted else self._loop.add_reader)(self._sock, attempt)
                waits_to_write = wanted

        attempt()
        try:
            await done
        finally:
            if waits_to_write is not None:
                self._let_go()

    def _let_go(self) -> None:
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
