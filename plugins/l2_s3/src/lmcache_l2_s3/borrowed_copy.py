"""Copies between borrowed memory and the buffers of the CRT client, on its threads.

The client's Python binding has no way to read from, or write into, memory that is given to it: it asks a stream to fill
its buffer of a part, and hands parts that came in over as `bytes`.  So there is one copy for each byte here, made without
the interpreter's lock, and none of it after `end`: what the client's threads still do then does not reach the memory.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any, Final

from lmcache_core import BorrowedBuffer


class MisfitError(Exception):
    """What comes in has not the length that was asked for.  Raised in a callback, it ends the request."""

    def __init__(self, length: int) -> None:
        super().__init__(f"{length} bytes")
        self.length = length


class BorrowEndedError(Exception):
    """The buffer was given back.  Raised in a callback, it ends the request."""


class BorrowedSource:
    """A borrowed buffer as the body of a request.  Read by one thread of the client at a time; `end` on any other."""

    def __init__(self, buffer: BorrowedBuffer) -> None:
        self._address: Final = buffer.address
        self._length: Final = buffer.length
        self._at = 0
        self._lock: Final = threading.Lock()  # held while bytes are copied
        self._ended = False

    def read(self, size: int = -1) -> bytes:
        """Only for a client that cannot fill memory: this copies twice."""
        target = bytearray(self._length - self._at if size < 0 else size)
        return bytes(target[: self.readinto(memoryview(target))])

    def readinto(self, target: memoryview) -> int:
        with self._lock:
            if self._ended:
                raise BorrowEndedError
            size = min(len(target), self._length - self._at)
            if size > 0:
                ctypes.memmove(ctypes.addressof(ctypes.c_char.from_buffer(target)), self._address + self._at, size)
                self._at += size
            return size

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = min(max((0, self._at, self._length)[whence] + offset, 0), self._length)
        return self._at

    def end(self) -> None:
        """Nothing of the buffer is read from here on.  Waits for a copy that is being made."""
        with self._lock:
            self._ended = True


class BorrowedSink:
    """A borrowed buffer that an answer goes to.  Called by one thread of the client at a time; `end` on any other."""

    def __init__(self, buffer: BorrowedBuffer, length_min: int) -> None:
        """`length_min`: of a buffer that is borrowed `at_most`, a shorter object than this is none."""
        self._address: Final = buffer.address
        self._length: Final = buffer.length
        self._length_min: Final = length_min if buffer.at_most else buffer.length
        self._expected: int | None = None
        self._lock: Final = threading.Lock()  # held while bytes are copied
        self._ended = False
        self.received = 0

    @property
    def is_whole(self) -> bool:
        """Every byte of the object has come, and lies where it belongs.  Ask it when the request has ended."""
        return self.received == self._expected

    def on_headers(self, status_code: int, headers: list[tuple[str, str]], **_: Any) -> None:
        if not 200 <= status_code < 300:
            return
        length = length_of(headers)
        if length is not None and not self._length_min <= length <= self._length:
            raise MisfitError(length)
        self._expected = length

    def on_body(self, chunk: bytes, offset: int, **_: Any) -> None:
        with self._lock:
            if self._ended:
                raise BorrowEndedError
            size = len(chunk)
            # In order and without gaps, as the client promises; what did otherwise would pass for whole by its number.
            if offset != self.received or offset + size > self._length:
                raise MisfitError(offset + size)
            ctypes.memmove(self._address + offset, chunk, size)
            self.received += size

    def end(self) -> None:
        """Nothing is written into the buffer from here on.  Waits for a copy that is being made."""
        with self._lock:
            self._ended = True


class PageSink:
    """The first bytes of an object, and how long the whole of it is."""

    def __init__(self, size: int) -> None:
        self._size: Final = size
        self.page = b""
        self.length = 0
        self.etag = ""

    def on_headers(self, status_code: int, headers: list[tuple[str, str]], **_: Any) -> None:
        if 200 <= status_code < 300:
            self.length = length_of(headers) or 0
            self.etag = next((value for name, value in headers if name.lower() == "etag"), "")

    def on_body(self, chunk: bytes, **_: Any) -> None:
        if len(self.page) + len(chunk) > self._size:
            raise MisfitError(len(self.page) + len(chunk))
        self.page += chunk


def length_of(headers: list[tuple[str, str]]) -> int | None:
    """Of the whole object, whatever part of it the answer holds; None where it does not say."""
    length = None
    for name, value in headers:
        match name.lower():
            case "content-range":
                total = value.rpartition("/")[2]
                return int(total) if total.isdecimal() else None
            case "content-length" if value.isdecimal():
                length = int(value)
    return length
