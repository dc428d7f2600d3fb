"""One socket on an event loop, plain or TLS: bytes go between it and the caller's memory, and nowhere else.

`asyncio`'s own transports copy what the kernel does not take at once, and hand out what they received in buffers of their own.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
from collections.abc import Callable
from typing import Final, Literal

from lmcache_l2_redis.replies import Passed

STEPS_MAX: Final = 64
"""Calls of the kernel before others on the loop have their turn."""
BLOCK_BYTES: Final = 1 << 20
"""Of a value so much at most is taken before it is shown: it is to be in a cache still."""
BIG_BYTES: Final = 512 << 10
"""The loop wakes up for a quarter of a long value at a time, a block at most: each wake-up costs as much as
copying some 50 KiB."""
_PARTS_MAX: Final = 512

Way = Literal["read", "write"]
Step = Callable[[], bool]
"""Tries once without waiting: True when all is done.  Raises what says that it would have to wait."""


class Channel:
    """Belongs to its loop; one sender or receiver at a time.  Raises ConnectionError (or another OSError) where the peer is
    gone.  A cancelled call leaves the socket in the middle of something: close it then.

    The loop watches for bytes to read from the first wait for some on until `close`, or until some come without a waiting
    reader for: to begin and end it for every reply would be two calls of the kernel more."""

    def __init__(self, sock: socket.socket) -> None:
        """Takes over the socket, which does not block."""
        self._sock: Final = sock
        self._fd: Final = sock.fileno()
        """The loop's registration of the socket: for an unknown one it formats a text, which costs copying 100 KiB."""
        self._is_tls: Final = isinstance(sock, ssl.SSLSocket)
        self._loop: Final = asyncio.get_running_loop()
        self._poll: Final = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._step: Step | None = None
        self._done: asyncio.Future[None] | None = None
        """Of the step that is to be tried; None: no waiter."""
        self._waits_to: Way = "read"
        self._is_watched: Final[dict[Way, bool]] = {"read": False, "write": False}

    async def handshake(self) -> None:
        """Of TLS; nothing else comes before it."""
        if isinstance(self._sock, ssl.SSLSocket):
            await self._carry(self._shake_hands, "write")

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
            await self._carry(step, "write")

    async def receive(self, into: memoryview) -> int:
        """Bytes that most likely have not come yet."""
        got = 0

        def step() -> bool:
            nonlocal got
            got = self._received(into)
            return True

        await self._carry(step, "read", waits_first=not self._is_tls)
        return got

    async def fill(self, into: memoryview, behind: memoryview, count: int, passed: Passed) -> int:
        """As of a `ByteSource`."""
        size = len(into)
        wanted = size + count
        at = 0
        low_water = 1

        def step() -> bool:
            nonlocal at, low_water
            end = at + BLOCK_BYTES
            got = self._received(into[at:end], behind[max(at - size, 0) :] if end >= size else into[:0])
            if at < size:
                passed(into[at : min(at + got, size)])
            at += got
            if low_water > 1 and wanted - at < low_water:
                low_water = self._wake_at(1)
            return at >= wanted

        if wanted >= BIG_BYTES and not self._is_tls:
            low_water = self._wake_at(min(wanted // 4, BLOCK_BYTES))
        await self._carry(step, "read")
        return at - size

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
            self._watch("read", on=False)
            self._watch("write", on=False)
            self._sock.close()

    # How.

    def _shake_hands(self) -> bool:
        assert isinstance(self._sock, ssl.SSLSocket)
        self._sock.do_handshake()
        return True

    def _wake_at(self, count: int) -> int:
        """Wake up only when this number of bytes can be read."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
        return count

    def _received(self, *into: memoryview) -> int:
        parts = [part for part in into if len(part)]
        is_one = self._is_tls or len(parts) == 1
        got = self._sock.recv_into(parts[0]) if is_one else self._sock.recvmsg_into(parts)[0]
        if not got:
            raise ConnectionResetError("the server closed the connection")
        return got

    async def _carry(self, step: Step, waits_to: Way, *, waits_first: bool = False) -> None:
        done = self._loop.create_future()
        self._step, self._done, self._waits_to = step, done, waits_to
        if waits_first:
            self._watch(waits_to, on=True)
        else:
            self._attempt()
        try:
            await done
        finally:
            self._step = self._done = None
            self._watch("write", on=False)  # there is nearly always room

    def _attempt(self) -> None:
        step, done = self._step, self._done
        if step is None or done is None or done.done():
            return
        try:
            for _ in range(STEPS_MAX):
                if step():
                    done.set_result(None)
                    return
            self._loop.call_soon(self._attempt)
            return
        except ssl.SSLWantReadError:
            self._waits_to = "read"
        except ssl.SSLWantWriteError:
            self._waits_to = "write"
        except (BlockingIOError, InterruptedError):
            pass
        except BaseException as error:  # noqa: BLE001 - it is raised where the caller waits
            done.set_exception(error)
            return
        self._watch(self._waits_to, on=True)

    def _may(self, way: Way) -> None:
        if self._done is not None and self._waits_to == way:
            self._attempt()
        else:  # the loop would say so again and again
            self._watch(way, on=False)

    def _watch(self, way: Way, *, on: bool) -> None:
        if self._is_watched[way] is on:
            return
        self._is_watched[way] = on
        if on:
            (self._loop.add_reader if way == "read" else self._loop.add_writer)(self._fd, self._may, way)
        else:
            (self._loop.remove_reader if way == "read" else self._loop.remove_writer)(self._fd)
