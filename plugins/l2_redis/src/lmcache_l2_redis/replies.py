"""The protocol of Redis (RESP2, and the replies of RESP3): commands as bytes, replies as values.

Big values never pass through here as objects: `bulk_length` and `bulk_into` take them from the wire into memory of the
caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from lmcache_core import ProtocolError

BUFFER_BYTES: Final = 64 << 10
"""What is read ahead of small replies; a line must fit."""
HEAD_BYTES: Final = 64
"""What is read to learn how long a big value is.  What comes behind it in the same call is copied once more."""
BULK_MAX_BYTES: Final = 1 << 20
"""The longest value that may come as an object."""
REPLY_BYTES_MAX: Final = 64 << 20
"""Of one reply with all its parts: a wrong server is not to fill this one's memory."""
ITEMS_MAX: Final = 1 << 20
DEPTH_MAX: Final = 8
LENGTH_DIGITS_MAX: Final = 19
LINE_END: Final = b"\r\n"

Argument = bytes | str | int
Passed = Callable[[memoryview], None]
"""Is shown each part of a value, in order, when it is in its destination and most likely still in a cache."""
_SCALARS: Final = b"+:,#("
_AGGREGATES: Final = {ord("*"): 1, ord("~"): 1, ord("%"): 2}
"""Not what RESP3 pushes unasked: this client does not ask for RESP3, and taken for a reply it would be the wrong one."""


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An answer that says no.  `code` is its first word."""

    text: str

    @property
    def code(self) -> str:
        return self.text.partition(" ")[0]


Reply = bytes | int | None | ErrorReply | list["Reply"]
"""Simple and bulk strings are bytes; maps are flat lists."""


class ByteSource(Protocol):
    """Where bytes come from.  Both raise ConnectionError at the end of them."""

    async def receive(self, into: memoryview) -> int:
        """At least one byte, and what else is there."""

    async def fill(self, into: memoryview, behind: memoryview, count: int, passed: Passed) -> int:
        """Every byte of `into`, each shown to `passed`, and of what follows it at least `count` into `behind`; how many those
        are."""


def command(*arguments: Argument) -> bytes:
    """One command, ready to be sent."""
    return b"*%d\r\n" % len(arguments) + b"".join(map(_bulk, arguments))


def command_around(before: Sequence[Argument], length: int, after: Sequence[Argument]) -> tuple[bytes, bytes]:
    """What is sent in front of and behind a value of `length` bytes that is one argument of the command."""
    head = b"*%d\r\n" % (len(before) + 1 + len(after)) + b"".join(map(_bulk, before)) + b"$%d\r\n" % length
    return head, b"\r\n" + b"".join(map(_bulk, after))


def _bulk(argument: Argument) -> bytes:
    data = argument if isinstance(argument, bytes) else str(argument).encode()
    return b"$%d\r\n%b\r\n" % (len(data), data)


def unseen(_: memoryview) -> None:
    """Of a value that is not inspected while it arrives."""


class ReplyReader:
    """Reads the replies of one connection, in order.  After any exception the connection cannot be used any more, because
    the start of the next reply is unknown."""

    def __init__(self, source: ByteSource) -> None:
        self._source: Final = source
        self._buffer: Final = bytearray(BUFFER_BYTES)
        self._view: Final = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._bytes_left = REPLY_BYTES_MAX

    @property
    def is_drained(self) -> bool:
        """Was everything that came read, too?  What is left answers no request of ours."""
        return self._start == self._end

    async def reply(self) -> Reply:
        """The next reply.  Raises ProtocolError for what is none, ConnectionError."""
        self._bytes_left = REPLY_BYTES_MAX
        return await self._reply(0)

    async def bulk_length(self) -> int | ErrorReply | None:
        """How many bytes of a value follow, which `bulk_into` must take next; None: there is no value.  Raises ProtocolError
        where the reply is of another kind."""
        line = await self._line(HEAD_BYTES)
        match line[:1]:
            case b"$":
                length = _number(line)
                return None if length == -1 else _not_negative(length, line)
            case b"-":
                return _error(line)
            case b"_":
                return None
        raise ProtocolError(f"a value was asked for, and the server answers {line[:40]!r}")

    async def bulk_into(self, into: memoryview, passed: Passed = unseen) -> None:
        """The value whose length was received, which is that of `into`.  The caller's memory is written until this ends."""
        ready = min(len(into), self._end - self._start)
        into[:ready] = self._view[self._start : self._start + ready]
        self._start += ready
        passed(into[:ready])
        if ready < len(into):  # then nothing is left of what was read ahead
            self._start = self._end = 0
            self._end = await self._source.fill(into[ready:], self._view[:HEAD_BYTES], len(LINE_END), passed)
        await self._end_of_bulk()

    async def _reply(self, depth: int) -> Reply:
        line = await self._line(BUFFER_BYTES)
        self._spend(len(line))
        kind = line[0] if line else 0
        if kind == ord("-"):
            return _error(line)
        if kind == ord(":"):
            return _number(line)
        if kind in _SCALARS:
            return line[1:]
        if kind == ord("_"):
            return None
        if kind in b"$=!":
            return await self._bulk(line)
        if kind in _AGGREGATES:
            count = _number(line)
            if count == -1:
                return None
            count = _not_negative(count, line) * _AGGREGATES[kind]
            if depth == DEPTH_MAX or count > ITEMS_MAX:
                raise ProtocolError(f"a reply of {count} parts at depth {depth}, more than {ITEMS_MAX} or {DEPTH_MAX}")
            return [await self._reply(depth + 1) for _ in range(count)]
        raise ProtocolError(f"{line[:40]!r} is not a reply of the Redis protocol")

    async def _bulk(self, line: bytes) -> Reply:
        length = _number(line)
        if length == -1:
            return None
        if _not_negative(length, line) > BULK_MAX_BYTES:
            raise ProtocolError(f"a value of {length} bytes where at most {BULK_MAX_BYTES} were expected")
        self._spend(length)
        value = bytearray(length)
        await self.bulk_into(memoryview(value))
        if line[:1] == b"!":
            return _error(b"-" + bytes(value))
        return bytes(value)

    def _spend(self, count: int) -> None:
        self._bytes_left -= count
        if self._bytes_left < 0:
            raise ProtocolError(f"a reply of more than {REPLY_BYTES_MAX} bytes")

    async def _end_of_bulk(self) -> None:
        while self._end - self._start < len(LINE_END):
            await self._more(HEAD_BYTES)
        if self._buffer[self._start : self._start + len(LINE_END)] != LINE_END:
            raise ProtocolError("a value is longer than its length says")
        self._start += len(LINE_END)

    async def _line(self, at_a_time: int) -> bytes:
        """Up to the next line end, without it."""
        searched = self._start
        while (at := self._buffer.find(LINE_END, searched, self._end)) < 0:
            unread = self._end - self._start
            await self._more(at_a_time)
            searched = max(self._start, self._start + unread - 1)
        line = bytes(self._view[self._start : at])
        self._start = at + len(LINE_END)
        return line

    async def _more(self, at_a_time: int) -> None:
        if self._start == self._end:
            self._start = self._end = 0
        elif self._end == len(self._buffer):
            if not self._start:
                raise ProtocolError(f"a line of more than {BUFFER_BYTES} bytes")
            left = self._end - self._start
            self._buffer[:left] = self._buffer[self._start : self._end]
            self._start, self._end = 0, left
        self._end += await self._source.receive(self._view[self._end : self._end + at_a_time])


def _number(line: bytes) -> int:
    digits = line[1:].removeprefix(b"-")
    if not digits.isdigit() or len(digits) > LENGTH_DIGITS_MAX:
        raise ProtocolError(f"{line[:40]!r} has no number where one belongs")
    return int(line[1:])


def _not_negative(number: int, line: bytes) -> int:
    if number < 0:
        raise ProtocolError(f"{line[:40]!r} is not a length")
    return number


def _error(line: bytes) -> ErrorReply:
    return ErrorReply(line[1:].decode(errors="replace")[:500])
