"""The owner's side of the transfer channel `tcp`: a listener, and a thread for each connection."""

from __future__ import annotations

import secrets
import select
import socket
import ssl
import struct
import threading
import time
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from lmcache_core import ChannelContext, ResourceError
from lmcache_p2p.tls import Tls

CONNECTIONS_MAX: Final = 1024
"""That are served at one time."""
GREETINGS_MAX: Final = 64
"""Connections that have not greeted yet; one more, and the oldest of them is closed."""
GREETING_SECONDS: Final = 5.0
"""A new connection has to encrypt and to greet within this time."""
SEND_SECONDS: Final = 30.0
"""Without a sign of the other side, until a connection ends."""
ALIVE_SECONDS: Final = 10
"""Between questions whether the other side of an idle connection is there."""
TLS_BYTES: Final = 256 * 1024
"""That are encrypted and sent before the lease is looked at again."""
PART_READS_MAX: Final = 512
"""Extents of one request."""
MAGIC: Final = b"LMCKVT02"
TICKET_BYTES: Final = 32
GREETING: Final = struct.Struct("<8s32s")
REQUEST: Final = struct.Struct("<16sI")
EXTENT: Final = struct.Struct("<QQ")
YES: Final = b"\x01"
NO: Final = b"\x00"


class TcpServer:
    """Sends what leases cover to those that bring their secrets.  Any thread."""

    def __init__(self, context: ChannelContext, port: int, tls: Tls | None) -> None:
        """`port` 0: any.  Raises ResourceError where the address is not of this machine, or the port is taken."""
        self._context, self._tls = context, tls
        self._lock = threading.Lock()  # guards what follows
        self._leases: dict[bytes, array[int]] = {}
        """What may be read, by secret: where extents begin and end, in turns, sorted."""
        self._tickets: set[bytes] = set()
        self._threads: dict[socket.socket, threading.Thread] = {}
        self._new: dict[socket.socket, None] = {}
        """Those that have not greeted yet, the oldest first."""
        self._greeted: dict[socket.socket, bytes] = {}
        """The others, with the ticket that each has brought."""
        self._closed = False
        try:
            self._listener = socket.create_server((context.host, port), family=_family(context.host), backlog=128)
        except OSError as error:
            remedy = "give --p2p-listen-url an address of this machine"
            if port:
                remedy += f", and --p2p-tcp-port another port than {port} where that is taken"
            raise ResourceError(f"{context.host} cannot be listened at ({error}); {remedy}") from None
        self.port: int = self._listener.getsockname()[1]
        self._acceptor = threading.Thread(target=self._accept, name="p2p-tcp-accept", daemon=True)
        self._acceptor.start()

    def new_ticket(self) -> bytes:
        """A connection has to greet with one."""
        ticket = secrets.token_bytes(TICKET_BYTES)
        with self._lock:
            self._tickets.add(ticket)
        return ticket

    def withdraw(self, ticket: bytes) -> None:
        """Connections that have brought it are cut off."""
        with self._lock:
            self._tickets.discard(ticket)
            for connection, brought in self._greeted.items():
                if brought == ticket:
                    shut(connection)

    def expose(self, secret: bytes, extents: Sequence[tuple[int, int]]) -> None:
        bounds = _bounds(extents)
        with self._lock:
            self._leases[secret] = bounds

    def hide(self, secret: bytes) -> None:
        with self._lock:
            self._leases.pop(secret, None)

    def close(self, until: float) -> None:
        """Nothing is sent any more; `until`: when to wait for that no longer."""
        with self._lock:
            self._closed = True
            threads = [self._acceptor, *self._threads.values()]
            for connection in (self._listener, *self._threads):
                shut(connection)
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listener.accept()
                if self._tls is not None:
                    connection = self._tls.server.wrap_socket(
                        connection, server_side=True, do_handshake_on_connect=False
                    )
            except OSError:
                if not self._closed:
                    time.sleep(0.05)  # no descriptors are left
                continue
            self._begin(connection)

    def _begin(self, connection: socket.socket) -> None:
        thread = threading.Thread(target=self._serve, args=(connection,), name="p2p-tcp-serve", daemon=True)
        with self._lock:
            if self._closed:
                connection.close()
                return
            if len(self._new) >= GREETINGS_MAX:
                oldest = next(iter(self._new))
                del self._new[oldest]
                shut(oldest)
            try:
                thread.start()  # which waits for the lock before it ends
            except RuntimeError as error:
                self._context.logger.warning("a connection of a peer was closed: %s", error)
                connection.close()
                return
            self._new[connection] = None
            self._threads[connection] = thread

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                if not self._is_greeted(connection):
                    return
                while True:
                    connection.settimeout(None)
                    secret, count = REQUEST.unpack(received(connection, REQUEST.size))
                    connection.settimeout(SEND_SECONDS)
                    if count > PART_READS_MAX:
                        return
                    if not self._answer(connection, secret, received(connection, count * EXTENT.size)):
                        return
        except OSError:
            pass  # the reader has gone, or does not read
        finally:
            with self._lock:
                self._new.pop(connection, None)
                self._greeted.pop(connection, None)
                self._threads.pop(connection, None)

    def _is_greeted(self, connection: socket.socket) -> bool:
        """Has it brought a ticket, in time?  Raises OSError."""
        until = time.monotonic() + GREETING_SECONDS
        set_options(connection)
        if isinstance(connection, ssl.SSLSocket):
            connection.settimeout(GREETING_SECONDS)  # of the whole handshake
            connection.do_handshake()
        magic, ticket = GREETING.unpack(received(connection, GREETING.size, until))
        with self._lock:
            if magic != MAGIC or ticket not in self._tickets:
                return False
            if connection not in self._new or len(self._greeted) >= CONNECTIONS_MAX:
                return False
            del self._new[connection]
            self._greeted[connection] = ticket
            return True

    def _answer(self, connection: socket.socket, secret: bytes, extents: bytes) -> bool:
        """False: it asks for what it may not have."""
        with self._lock:
            allowed = self._leases.get(secret)
        if allowed is None:
            connection.sendall(NO)
            return True
        wanted = list(EXTENT.iter_unpack(extents))
        if not all(_is_within(allowed, offset, length) for offset, length in wanted):
            self._context.logger.warning("a peer asked for bytes outside of its lease, and is cut off")
            return False
        view = self._context.region.view
        views = [memoryview(YES), *(view[offset : offset + length] for offset, length in wanted)]
        writable = select.poll()
        writable.register(connection, select.POLLOUT)
        while views and writable.poll(SEND_SECONDS * 1000) and secret in self._leases:  # else others may soon lie there
            views = _sent(connection, views)
        return not views


def received(connection: socket.socket, size: int, until: float | None = None) -> bytes:
    """All of it; `until`: the latest by then.  Raises OSError."""
    data = bytearray()
    while len(data) < size:
        if until is not None:
            if (left := until - time.monotonic()) <= 0:
                raise TimeoutError
            connection.settimeout(left)
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionResetError("the peer has closed the connection")
        data += part
    return bytes(data)


def set_options(connection: socket.socket) -> None:
    """Of both sides: what is sent goes out at once, and a connection whose other side has vanished ends by itself."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_NODELAY, 1),
        (socket.TCP_KEEPIDLE, ALIVE_SECONDS),
        (socket.TCP_KEEPINTVL, ALIVE_SECONDS),
        (socket.TCP_USER_TIMEOUT, int(SEND_SECONDS * 1000)),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def shut(connection: socket.socket) -> None:
    try:
        socket.socket.shutdown(connection, socket.SHUT_RDWR)  # that of ssl would let another thread go on unencrypted
    except OSError:
        pass  # it is closed


def _bounds(extents: Sequence[tuple[int, int]]) -> array[int]:
    bounds = array("Q")
    for offset, length in sorted(extents):
        if bounds and offset <= bounds[-1]:
            bounds[-1] = max(bounds[-1], offset + length)
        else:
            bounds.append(offset)
            bounds.append(offset + length)
    return bounds


def _is_within(bounds: array[int], offset: int, length: int) -> bool:
    place = bisect_right(bounds, offset)
    return place % 2 == 1 and offset + length <= bounds[place]


def _sent(connection: socket.socket, views: list[memoryview]) -> list[memoryview]:
    """Send some of these bytes.  Returns the rest."""
    if isinstance(connection, ssl.SSLSocket):  # it has no sendmsg
        connection.sendall(views[0][:TLS_BYTES])
        sent = min(TLS_BYTES, len(views[0]))
    else:
        sent = connection.sendmsg(views)
    while views and sent >= len(views[0]):
        sent -= len(views.pop(0))
    if sent:
        views[0] = views[0][sent:]
    return views


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
