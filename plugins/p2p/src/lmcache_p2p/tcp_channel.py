"""The transfer channel `tcp`: a listener, and a few connections to each peer.

A request is a lease's secret and some extents of the owner's region.  The answer is one byte, and then the bytes of the
extents, from L1 by `sendmsg` and into L1 by `recv_into`.  A request for anything outside of the lease closes the connection.

Connections to other machines are encrypted (tls.py), unless both sides say that they trust the network.
"""

from __future__ import annotations

import logging
import socket
import ssl
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
    Route,
    TransferChannel,
)
from lmcache_p2p.settings import TcpSettings, is_loopback
from lmcache_p2p.tcp_server import (
    EXTENT,
    GREETING,
    MAGIC,
    NO,
    PART_READS_MAX,
    REQUEST,
    YES,
    TcpServer,
    received,
    set_options,
    shut,
)
from lmcache_p2p.tls import Tls, check_fingerprint

logger = logging.getLogger(__name__)

CONNECTIONS: Final = 4
"""To one peer."""
PART_BYTES: Final = 8 * 1024 * 1024
"""Of one request, more or less: a job is spread over the connections in parts."""
CONNECT_SECONDS: Final = 2.0


class Description(msgspec.Struct, frozen=True):
    host: str
    port: int
    ticket: bytes
    """What a connection has to begin with."""
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
        """Raises ResourceError where the address is not of this machine or the port is taken, and ConfigError for
        certificates that are none."""
        is_plain = settings.plaintext or (settings.tls_cert is None and is_loopback(context.host))
        self._tls = None if is_plain else Tls(settings)
        self._settings, self._context = settings, context
        self._queue = CompletionQueue()
        self._jobs = JobTable(self._queue)
        self._lock = threading.Lock()  # guards the two below
        self._routes: list[TcpRoute] = []
        self._closed = False
        self._server = TcpServer(context, settings.port, self._tls)

    def describe(self) -> bytes:
        """Each time another ticket."""
        host, fingerprint = self._context.host, self._tls.fingerprint if self._tls else b""
        return msgspec.msgpack.encode(Description(host, self._server.port, self._server.new_ticket(), fingerprint))

    def withdraw(self, description: bytes) -> None:
        self._server.withdraw(msgspec.msgpack.decode(description, type=Description).ticket)

    def connect(self, description: bytes) -> TcpRoute:
        try:
            peer = msgspec.msgpack.decode(description, type=Description)
        except ValueError as error:
            raise LMCacheError(f"not a description of a tcp channel: {error}") from None
        if not (peer.fingerprint or self._settings.plaintext or is_loopback(peer.host)):
            raise LMCacheError("it would send chunks unencrypted; give --p2p-plaintext where the network is trusted")
        tls = (self._tls or Tls(self._settings)) if peer.fingerprint else None
        route = TcpRoute(peer, self._settings.load_timeout, self._jobs, tls)
        with self._lock:
            self._routes = [each for each in self._routes if each.has_threads] + [route]
            if not self._closed:
                return route
        route.close()
        raise LMCacheError("the channel is closed")

    def expose(self, secret: bytes, extents: Sequence[tuple[int, int]]) -> None:
        self._server.expose(secret, extents)

    def hide(self, secret: bytes) -> None:
        self._server.hide(secret)

    def completions(self) -> CompletionQueue:
        return self._queue

    def close(self, deadline_seconds: float) -> None:
        until = time.monotonic() + deadline_seconds
        with self._lock:
            self._closed = True
            routes = list(self._routes)
        for route in routes:
            route.close()
        self._server.close(until)
        for route in routes:
            route.join(until)


class TcpRoute(Route):
    """Its threads take parts from one queue; each has a connection that it opens when it is first needed."""

    def __init__(self, peer: Description, silence_seconds: float, jobs: JobTable, tls: Tls | None) -> None:
        """Raises LMCacheError where the peer cannot be reached, or is not what it has said."""
        self._peer, self._silence, self._jobs, self._tls = peer, silence_seconds, jobs, tls
        self._parts: SimpleQueue[Part | None] = SimpleQueue()
        self._lock = threading.Lock()  # guards the two below
        self._connections: set[socket.socket] = set()
        self.is_closed = False
        first = self._connected()
        self._threads = [
            threading.Thread(
                target=self._run, args=(None if number else first,), name=f"p2p-tcp-read-{number}", daemon=True
            )
            for number in range(CONNECTIONS)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def has_threads(self) -> bool:
        """False some time after it was closed: no buffer is touched any more."""
        return any(thread.is_alive() for thread in self._threads)

    def join(self, until: float) -> None:
        """After `close`: wait until no buffer is touched any more."""
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

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
                shut(connection)
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
        except (OSError, ValueError, OverflowError) as error:  # neither a name nor a port
            raise LMCacheError(f"tcp://{self._peer.host}:{self._peer.port} cannot be reached: {error}") from None
        set_options(connection)
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
            connection.sendall(GREETING.pack(MAGIC, self._peer.ticket))
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
    extents = b"".join([EXTENT.pack(read.offset, read.buffer.length) for read in part.reads])
    connection.sendall(REQUEST.pack(part.secret, len(part.reads)) + extents)
    answer = received(connection, 1)
    if answer == NO:
        return Outcome.MISSING
    if answer != YES:
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


def _waiting(parts: SimpleQueue[Part | None]) -> list[Part]:
    found: list[Part] = []
    while True:
        try:
            part = parts.get_nowait()
        except Empty:
            return found
        if part is not None:
            found.append(part)
