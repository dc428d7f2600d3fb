"""A connection whose socket blocks: one call of the kernel moves a whole value between it and memory."""

from __future__ import annotations

import math
import os
import select
import socket
import struct
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from lmcache_l2_lm.frames import ANSWER_BYTES, Answer, parse_answer

SLICE_SECONDS: Final = 1
"""A call of the kernel returns after it, so that the end of an operation's time is seen."""
KEEPALIVE_SECONDS: Final = 15
BLOCK_BYTES: Final = 1 << 20
"""Of a value so much is taken before it is shown: it is to be in a cache still."""
SKIP_BYTES: Final = 256 << 10

Passed = Callable[[memoryview], None]


class Line:
    """One thread at a time; only `shutdown` may come from another.  Raises ConnectionError (or another OSError) where the peer
    is gone, TimeoutError where `end`, by the monotonic clock, has passed.  After either the line is of no use any more."""

    def __init__(self, sock: socket.socket, stall_seconds: float = math.inf) -> None:
        """Takes over a connected socket.  `stall_seconds`: where no byte moves for this long, that is a TimeoutError, too."""
        self._socket: Final = sock
        self._stall_seconds: Final = stall_seconds
        sock.settimeout(None)  # Python's own time-outs make a socket that does not block
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            sock.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", SLICE_SECONDS, 0))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_SECONDS)
        self._poll: Final = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._answer: Final = memoryview(bytearray(ANSWER_BYTES))

    @property
    def is_quiet(self) -> bool:
        """Is it open, with nothing to read?  What an unused connection has to say is that it is gone."""
        return not self.is_closed and not self._poll.poll(0)

    @property
    def is_closed(self) -> bool:
        return self._socket.fileno() < 0

    def wait(self) -> None:
        """Until there is something to read, or the peer is gone."""
        self._poll.poll()

    def send(self, *parts: bytes | memoryview, end: float) -> None:
        """All of them, one behind the other."""
        left = [memoryview(part) for part in parts if len(part)]
        while left:
            sent = self._unless_stalled(partial(self._socket.sendmsg, left), end)
            while left and sent >= len(left[0]):
                sent -= len(left.pop(0))
            if left:
                left[0] = left[0][sent:]
                _check_time(end)

    def send_file(self, descriptor: int, start: int, length: int, end: float) -> None:
        """Bytes of a file, without a copy in this process.  Raises EOFError where it has fewer."""
        while length:
            sent = self._unless_stalled(partial(os.sendfile, self._socket.fileno(), descriptor, start, length), end)
            if not sent:
                raise EOFError(f"a file ends at {start}, {length} bytes early")
            start += sent
            length -= sent
            _check_time(end)

    def some(self, into: memoryview, end: float) -> int:
        """Fill it as far as bytes come within a slice of the time; at least one."""
        got = self._unless_stalled(partial(self._socket.recv_into, into, 0, socket.MSG_WAITALL), end)
        if not got:
            raise ConnectionResetError("the other side closed the connection")
        return got

    def fill(self, into: memoryview, end: float, passed: Passed | None = None) -> None:
        """All of it.  `passed` is shown each part as it comes."""
        at = 0
        while at < len(into):
            stop = len(into) if passed is None else at + BLOCK_BYTES
            got = self.some(into[at:stop], end)
            if passed is not None:
                passed(into[at : at + got])
            at += got
            if at < len(into):
                _check_time(end)

    def skip(self, count: int, end: float) -> None:
        """Take in and forget this number of bytes."""
        scratch = memoryview(bytearray(min(count, SKIP_BYTES)))
        while count:
            count -= self.some(scratch[:count], end)
            _check_time(end)

    def answer(self, end: float) -> Answer:
        """Raises ProtocolError, too."""
        self.fill(self._answer, end)
        return parse_answer(self._answer)

    def shutdown(self) -> None:
        """Whatever uses it in another thread ends at once."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has gone already

    def close(self) -> None:
        self._socket.close()

    def _unless_stalled(self, move: Callable[[], int], end: float) -> int:
        """How many bytes moved."""
        slices = 0
        while True:
            try:
                return move()
            except BlockingIOError:
                slices += 1
                _check_time(end)
                if slices * SLICE_SECONDS >= self._stall_seconds:
                    raise TimeoutError("no byte moves") from None


def connect(host: str, port: int, timeout_seconds: float) -> Line:
    """Raises ConnectionError that names the address."""
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        return Line(socket.create_connection((host, port), timeout_seconds))
    except TimeoutError:
        raise ConnectionError(f"{where} does not answer within {timeout_seconds:g} s") from None
    except OSError as error:
        raise ConnectionError(f"{where} cannot be reached ({error.strerror or error})") from None


def _check_time(end: float) -> None:
    if end != math.inf and time.monotonic() > end:
        raise TimeoutError("the other side is too slow, or does not answer")
