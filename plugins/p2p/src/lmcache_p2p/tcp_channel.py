"""The transfer channel `tcp`: a listener, and a few connections to each peer.

A request is a lease's secret and some extents of the owner's region.  The answer is one byte, and then the bytes of the
extents, from L1 by `sendmsg` and into L1 by `recv_into`.  A request for anything outside of the lease closes the connection.

Connections to other machines are encrypted (tls.py), unless both sides say that they trust the network.
"""

from __future__ import annotations

import hmac
import logging
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple

import msgspec

from lmcache_core import (
    BorrowedBuffer,
    ChannelContext,
    CompletionQueue,
    Job,
    JobId,
    JobTable,
    LMCacheError,
    Outcome,
    RemoteRead,
    ResourceError,
    Route,
    TransferChannel,
)
from lmcache_p2p.settings import TcpSettings, is_loopback
from lmcache_p2p.tls import Tls, check_fingerprint

logger = logging.getLogger(__name__)

CONNECTIONS: Final = 4
"""To one peer."""
PART_BYTES: Final = 8 * 1024 * 1024
"""Of one request, more or less: a job is spread over the connections in parts."""
PART_READS_MAX: Final = 512
CONNECT_SECONDS: Final = 2.0
CONNECTIONS_MAX: Final = 1024
"""That are served at one time."""
SILENT_SECONDS: Final = 5.0
"""A new connection has to say the boot id within this time."""
SEND_SECONDS: Final = 30.0
TLS_BYTES: Final = 256 * 1024
"""That are encrypted and sent before the lease is looked at again."""
MAGIC: Final = b"LMCKVT01"
_GREETING: Final = struct.Struct("<8s32s")
_REQUEST: Final = struct.Struct("<16sI")
_EXTENT: Final = struct.Struct("<QQ")
_YES: Final = b"\x01"
_NO: Final = b"\x00"


class Description(msgspec.Struct, frozen=True):
    host: str
    port: int
    boot_id: str
    fingerprint: bytes = b""
    """SHA-256 of the certificate that it shows; empty: it does not encrypt."""


class Part(NamedTuple):
    """A share of a job that one connection reads."""

    job: Job
    first: int
    """Place of its first read in the job."""
    secret: bytes
    reads: Sequence[RemoteRead]


class TcpChannel(TransferChannel):
    """The owner's side has one thread for each connection; a route has one for each of its connections."""

    def __init__(self, settings: TcpSettings, context: ChannelContext) -> None:
        """Raises ResourceError where the address is not of this machine, and ConfigError for certificates that are none."""
        is_plain = settings.plaintext or (settings.tls_cert is None and is_loopback(context.host))
        self._tls = None if is_plain else Tls(settings)
        self._settings, self._context = settings, context
        self._queue = CompletionQueue()
        self._jobs = JobTable(self._queue)
        self._routes: list[TcpRoute] = []
        self._lock = threading.Lock()  # guards the three below
        self._leases: dict[bytes, tuple[tuple[int, int], ...]] = {}
        self._served: dict[socket.socket, threading.Thread] = {}
        self._closed = False
        try:
            self._listener = socket.create_server((context.host, 0), family=_family(context.host), backlog=128)
        except OSError as error:
            raise ResourceError(
                f"{context.host} cannot be listened at ({error}); give --p2p-listen-url an address of this machine"
            ) from None
        self._acceptor = threading.Thread(target=self._accept, name="p2p-tcp-accept", daemon=True)
        self._acceptor.start()

    def describe(self) -> bytes:
        port, fingerprint = self._listener.getsockname()[1], self._tls.fingerprint if self._tls else b""
        return msgspec.msgpack.encode(Description(self._context.host, port, self._context.boot_id, fingerprint))

    def connect(self, description: bytes) -> TcpRoute:
        try:
            peer = msgspec.msgpack.decode(description, type=Description)
            greeting = _GREETING.pack(MAGIC, peer.boot_id.encode())
        except (ValueError, struct.error) as error:
            raise LMCacheError(f"not a description of a tcp channel: {error}") from None
        if not (peer.fingerprint or self._settings.plaintext or is_loopback(peer.host)):
            raise LMCacheError("it would send chunks unencrypted; give --p2p-plaintext where the network is trusted")
        tls = (self._tls or Tls(self._settings)) if peer.fingerprint else None
        route = TcpRoute(peer, greeting, self._settings.load_timeout, self._jobs, tls)
        with self._lock:
            if not self._closed:
                self._routes = [each for each in self._routes if not each.is_closed] + [route]
                return route
        route.close()
        raise LMCacheError("the channel is closed")

    def expose(self, secret: bytes, extents: Sequence[tuple[int, int]]) -> None:
        with self._lock:
            self._leases[secret] = tuple(extents)

    def hide(self, secret: bytes) -> None:
        with self._lock:
            self._leases.pop(secret, None)

    def completions(self) -> CompletionQueue:
        return self._queue

    def close(self, deadline_seconds: float) -> None:
        with self._lock:
            self._closed = True
            served = list(self._served.items())
            routes = list(self._routes)
        _shut(self._listener)
        for connection, _ in served:
            _shut(connection)
        for route in routes:
            route.close()
        until = time.monotonic() + deadline_seconds
        for thread in [self._acceptor, *(thread for _, thread in served)]:
            thread.join(max(0.0, until - time.monotonic()))
        self._listener.close()

    # --- the owner's side

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
            thread = threading.Thread(target=self._serve, args=(connection,), name="p2p-tcp-serve", daemon=True)
            with self._lock:
                is_full = self._closed or len(self._served) >= CONNECTIONS_MAX
                if not is_full:
                    self._served[connection] = thread
            if is_full:
                connection.close()
            else:
                thread.start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.settimeout(SILENT_SECONDS)
                if isinstance(connection, ssl.SSLSocket):
                    connection.do_handshake()
                expected = _GREETING.pack(MAGIC, self._context.boot_id.encode())
                if not hmac.compare_digest(_received(connection, _GREETING.size), expected):
                    return
                while True:
                    connection.settimeout(None)
                    secret, count = _REQUEST.unpack(_received(connection, _REQUEST.size))
                    connection.settimeout(SEND_SECONDS)
                    if count > PART_READS_MAX:
                        return
                    if not self._answer(connection, secret, _received(connection, count * _EXTENT.size)):
                        return
        except OSError:
            pass  # the reader has gone, or does not read
        finally:
            with self._lock:
                self._served.pop(connection, None)

    def _answer(self, connection: socket.socket, secret: bytes, extents: bytes) -> bool:
        """False: it asks for what it may not have."""
        with self._lock:
            allowed = self._leases.get(secret)
        if allowed is None:
            connection.sendall(_NO)
            return True
        wanted = list(_EXTENT.iter_unpack(extents))
        if not all(any(_is_within(each, one) for one in allowed) for each in wanted):
            self._context.logger.warning("a peer asked for bytes outside of its lease, and is cut off")
            return False
        view = self._context.region.view
        views = [memoryview(_YES), *(view[offset : offset + length] for offset, length in wanted)]
        writable = select.poll()
        writable.register(connection, select.POLLOUT)
        while views and writable.poll(SEND_SECONDS * 1000) and secret in self._leases:  # else others may soon lie there
            views = _sent(connection, views)
        return not views


class TcpRoute(Route):
    """Its threads take parts from one queue; each has a connection that it opens when it is first needed."""

    def __init__(
        self, peer: Description, greeting: bytes, silence_seconds: float, jobs: JobTable, tls: Tls | None
    ) -> None:
        """Raises LMCacheError where the peer cannot be reached, or is not what it has said."""
        self._peer, self._greeting, self._silence, self._jobs, self._tls = peer, greeting, silence_seconds, jobs, tls
        self._parts: SimpleQueue[Part | None] = SimpleQueue()
        self._lock = threading.Lock()  # guards the two below
        self._connections: set[socket.socket] = set()
        self.is_closed = False
        first = self._connected()
        for number in range(CONNECTIONS):
            thread = threading.Thread(
                target=self._run, args=(None if number else first,), name=f"p2p-tcp-read-{number}", daemon=True
            )
            thread.start()

    def submit_read(self, secret: bytes, reads: Sequence[RemoteRead]) -> JobId:
        job = self._jobs.open(len(reads), lends_buffers=True)
        parts, first = [], 0
        while first < len(reads):
            end, size = first, 0
            while end < len(reads) and end - first < PART_READS_MAX and (size == 0 or size < _share(reads)):
                size += reads[end].buffer.length
                end += 1
            parts.append(Part(job, first, secret, reads[first:end]))
            first = end
        with self._lock:
            is_closed = self.is_closed
            if not is_closed:
                for part in parts:
                    self._parts.put(part)
        for part in parts if is_closed else ():
            self._ended(part, Outcome.FAILED)
        return job.id

    def close(self) -> None:
        with self._lock:
            if self.is_closed:
                return
            self.is_closed = True
            for connection in self._connections:
                _shut(connection)
        for part in _waiting(self._parts):
            self._ended(part, Outcome.FAILED)
        for _ in range(CONNECTIONS):
            self._parts.put(None)

    def _run(self, connection: socket.socket | None) -> None:
        while (part := self._parts.get()) is not None:
            outcome = Outcome.FAILED
            try:
                connection = connection or self._connected()
                outcome = _read(connection, part)
            except (OSError, LMCacheError) as error:
                logger.debug("a part was not read peer=%s error=%s", self._peer.host, error)
                if connection is not None:
                    self._forget(connection)
                    connection = None
            self._ended(part, outcome)
            del part
        if connection is not None:
            self._forget(connection)

    def _ended(self, part: Part, outcome: Outcome) -> None:
        """Its buffers are not touched any more."""
        for place in range(part.first, part.first + len(part.reads)):
            self._jobs.settle(part.job, place, outcome)

    def _connected(self) -> socket.socket:
        """Raises LMCacheError."""
        try:
            connection = socket.create_connection((self._peer.host, self._peer.port), CONNECT_SECONDS)
            if self._tls is not None:
                connection = self._tls.client.wrap_socket(connection, do_handshake_on_connect=False)
        except OSError as error:
            raise LMCacheError(f"tcp://{self._peer.host}:{self._peer.port} cannot be reached: {error}") from None
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            if not self.is_closed:
                self._connections.add(connection)
        try:
            if connection not in self._connections:
                raise OSError("the route is closed")
            if isinstance(connection, ssl.SSLSocket):
                connection.do_handshake()
                check_fingerprint(connection, self._peer.fingerprint)
            connection.settimeout(self._silence)
            connection.sendall(self._greeting)
        except (OSError, LMCacheError) as error:
            self._forget(connection)
            raise LMCacheError(f"tcp://{self._peer.host}:{self._peer.port}: {error}") from None
        return connection

    def _forget(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.discard(connection)
        connection.close()


def _share(reads: Sequence[RemoteRead]) -> int:
    """Bytes of one part of a job: all connections get some."""
    return min(PART_BYTES, -(-sum(read.buffer.length for read in reads) // CONNECTIONS))


def _read(connection: socket.socket, part: Part) -> Outcome:
    """Raises OSError."""
    extents = b"".join([_EXTENT.pack(read.offset, read.buffer.length) for read in part.reads])
    connection.sendall(_REQUEST.pack(part.secret, len(part.reads)) + extents)
    answer = _received(connection, 1)
    if answer == _NO:
        return Outcome.MISSING
    if answer != _YES:
        raise ConnectionResetError("not an answer")
    for read in part.reads:
        _receive_into(connection, read.buffer)
    return Outcome.DONE


def _receive_into(connection: socket.socket, buffer: BorrowedBuffer) -> None:
    view, at = buffer.view, 0
    while at < len(view):
        count = connection.recv_into(view[at:])
        if not count:
            raise ConnectionResetError("the peer has closed the connection")
        at += count


def _received(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionResetError("the peer has closed the connection")
        data += part
    return bytes(data)


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


def _is_within(wanted: tuple[int, ...], allowed: tuple[int, int]) -> bool:
    offset, length = wanted
    return allowed[0] <= offset and offset + length <= allowed[0] + allowed[1]


def _waiting(parts: SimpleQueue[Part | None]) -> list[Part]:
    found: list[Part] = []
    while True:
        try:
            part = parts.get_nowait()
        except Empty:
            return found
        if part is not None:
            found.append(part)


def _shut(connection: socket.socket) -> None:
    try:
        socket.socket.shutdown(connection, socket.SHUT_RDWR)  # that of ssl would let another thread go on unencrypted
    except OSError:
        pass  # it is closed


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
