"""The connected socket of one peer of the engine port, which libzmq owns and may close at any time."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple, Self

_TCP_INFO_BYTES: Final = 256
_BYTES_ACKED: Final = struct.Struct("=120xQ")
"""Where `struct tcp_info` has the bytes that the peer has acknowledged (Linux 4.1)."""


class PeerSocket(NamedTuple):
    """Names a socket by its descriptor in this process and its inode, so that a descriptor that was closed and given to another
    connection is told apart."""

    descriptor: int
    inode: int

    @classmethod
    def of(cls, descriptor: int) -> Self | None:
        """The socket that has this descriptor now, None where there is none."""
        try:
            return cls(descriptor, os.fstat(descriptor).st_ino)
        except OSError:
            return None

    @property
    def is_open(self) -> bool:
        return PeerSocket.of(self.descriptor) == self

    @contextmanager
    def borrow(self) -> Iterator[socket.socket | None]:
        """The socket itself, None where it is closed.  libzmq may close it meanwhile; it is the same socket nevertheless."""
        try:
            borrowed = socket.socket(fileno=os.dup(self.descriptor))
        except OSError:
            yield None
            return
        with borrowed:
            yield borrowed if os.fstat(borrowed.fileno()).st_ino == self.inode else None

    def hang_up(self) -> bool:
        """End the connection in both directions; libzmq notices and closes its end.  False where it is closed already.

        Needs no free descriptor.  Where there is none, libzmq may close the socket between the look at it and its end, and the
        next connection that has its descriptor ends instead, which connects again."""
        with self.borrow() as borrowed:
            if borrowed is not None:
                _shut_down(borrowed)
                return True
        if not self.is_open:
            return False
        try:
            original = socket.socket(fileno=self.descriptor)
        except OSError:
            return False
        _shut_down(original)
        original.detach()
        return True

    def read_mark(self) -> int | None:
        """A number that changes as the peer takes in what was sent; None where the socket is closed."""
        with self.borrow() as borrowed:
            if borrowed is None:
                return None
            try:
                if borrowed.family != socket.AF_UNIX:
                    info = borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
                    return int(_BYTES_ACKED.unpack_from(info)[0])
                unread = fcntl.ioctl(borrowed.fileno(), termios.TIOCOUTQ, bytes(4))
                return int.from_bytes(unread, "little")
            except (OSError, struct.error):  # not connected any more, or an old kernel
                return None


def _shut_down(connection: socket.socket) -> None:
    with suppress(OSError):  # the peer was faster
        connection.shutdown(socket.SHUT_RDWR)
