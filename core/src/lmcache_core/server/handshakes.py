"""Handshakes at the engine port: which connections are admitted, and how each handshake went.

libzmq asks its ZAP handler before a handshake ends, but names only the address of the peer, not the connection.  So owners are
looked up when connections are accepted, which the monitor reports first; those of users who may not use the port are hung
up, and no handshake that was asked for meanwhile is answered before libzmq has closed them.  Whatever passes is therefore a
connection whose owner was admitted, and nothing is left to check for its requests.  This needs libzmq's events in their
order, which one I/O thread gives.
"""

from __future__ import annotations

import logging
import struct
from collections import deque
from typing import Final, NamedTuple

import zmq

from lmcache_client.sockets import DOMAIN
from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.counts import HandshakeCounters
from lmcache_core.jobs.fault_log import FaultLog
from lmcache_core.server.engine_socket import EngineSocket
from lmcache_core.server.peers import EngineUsers, Owner, PeerSocket, owner_of

logger = logging.getLogger(__name__)

HANDSHAKE_SECONDS: Final = 30.0
"""libzmq closes a connection whose handshake takes longer (ZMQ_HANDSHAKE_IVL)."""
_ZAP_ENDPOINT: Final = "inproc://zeromq.zap.01"
_MONITOR_ENDPOINT: Final = "inproc://lmcache-engine-port"
_ZAP_VERSION: Final = b"1.0"
_ZAP_FRAMES: Final = 8
"""Route, delimiter, version, request id, domain, address, identity, mechanism; credentials may follow."""
_FAILED: Final = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
_EVENTS: Final = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | _FAILED
)


class _Request(NamedTuple):
    """A handshake that libzmq asked about."""

    route: bytes
    number: bytes
    is_known: bool
    """It is about a socket of ours, and without a mechanism of its own."""
    closing: set[int]
    """Connections that were hung up before and are not closed yet: it may be about any of them."""


class Handshakes:
    """The one ZAP handler of the port's context, and the reader of its monitor; `run` is the thread's body.

    The port must be made and not yet bound.  libzmq waits with every handshake for an answer from here, so nothing is admitted
    while the thread is down.  `counters` belongs to any thread."""

    def __init__(self, port: EngineSocket, users: EngineUsers, clock: Clock) -> None:
        self._users = users
        self._clock = clock
        self._faults = FaultLog(logger, clock, "port=engine")
        self._zap = port.context.socket(zmq.ROUTER)
        self._zap.setsockopt(zmq.LINGER, 0)
        self._zap.bind(_ZAP_ENDPOINT)
        port.socket.monitor(_MONITOR_ENDPOINT, _EVENTS)
        self._monitor = port.context.socket(zmq.PAIR)
        self._monitor.setsockopt(zmq.RCVHWM, 0)  # libzmq's I/O thread would wait for space
        self._monitor.connect(_MONITOR_ENDPOINT)
        self._accepted = self._closed = self._ok = self._refused = self._incomplete = self._forbidden = 0
        self._events: deque[tuple[int, int]] = deque()
        """Kinds and values, in the order in which libzmq's I/O thread wrote them."""
        self._hung_up: dict[int, bool] = {}
        """Descriptors of connections that are not admitted and not closed yet; is that because of their owner?"""
        self._requests: list[_Request] = []
        """Not answered yet."""
        self._in_handshake: dict[int, float] = {}
        """Descriptors of open connections that may be in the middle of their handshake, and when they were accepted."""
        self._failure = 0
        """The event before this one, if it says why a connection is closed: its EVENT_DISCONNECTED is the next."""

    @property
    def counters(self) -> HandshakeCounters:
        return HandshakeCounters(
            self._accepted, self._closed, self._ok, self._refused, self._incomplete, self._forbidden
        )

    def run(self) -> None:
        """Ends when the port is closed."""
        poller = zmq.Poller()
        poller.register(self._zap, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)
        try:
            while True:
                poller.poll()
                self._take_requests()
                self._take_events()
        except zmq.ContextTerminated:
            self.close()

    def close(self) -> None:
        """After `run` has ended, or where it never began.  The port's context cannot end before.  Again: nothing."""
        self._zap.close()
        self._monitor.close()

    def _take_requests(self) -> None:
        while True:
            try:
                frames = self._zap.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(frames) < _ZAP_FRAMES:
                continue
            route, _, version, number, domain, _, _, mechanism = frames[:_ZAP_FRAMES]
            is_known = version == _ZAP_VERSION and domain == DOMAIN and mechanism == b"NULL"
            self._take_events()  # its connection was accepted before it asked
            self._requests.append(_Request(route, number, is_known, set(self._hung_up)))
            self._answer_requests()

    def _answer_requests(self) -> None:
        for request in [each for each in self._requests if not each.closing]:
            self._requests.remove(request)
            status = (b"200", b"OK") if request.is_known else (b"400", b"no such domain or mechanism")
            self._zap.send_multipart([request.route, b"", _ZAP_VERSION, request.number, *status, b"", b""])

    def _take_events(self) -> None:
        self._read_events()
        while self._events:
            self._take_event(*self._events.popleft())

    def _read_events(self) -> None:
        while True:
            try:
                self._events.append(struct.unpack("=HI", self._monitor.recv_multipart(zmq.NOBLOCK)[0]))
            except zmq.Again:
                return

    def _take_event(self, kind: int, value: int) -> None:
        if kind == zmq.EVENT_ACCEPTED:
            self._accepted += 1
            self._in_handshake[value] = self._clock.monotonic()
            self._check_owner(value)
        elif kind == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._ok += 1
        elif kind == zmq.EVENT_DISCONNECTED:
            self._closed += 1
            self._in_handshake.pop(value, None)
            if self._hung_up.pop(value, False):
                self._forbidden += 1
            elif self._failure == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                self._incomplete += 1
            elif self._failure:
                self._refused += 1
            for request in self._requests:
                request.closing.discard(value)
            self._answer_requests()
        self._failure = kind if kind & (_FAILED | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL) else 0
        self._count_refused()

    def _check_owner(self, descriptor: int) -> None:
        if self._users.uids is None:
            return
        self._hung_up[descriptor] = False  # stays so where this fails
        peer = PeerSocket.of(descriptor)
        owner = None if peer is None else self._look_up(peer)
        self._read_events()
        # Where it is closed by now, this was perhaps the owner of the next connection that has its descriptor.
        if (zmq.EVENT_DISCONNECTED, descriptor) in self._events or (owner is not None and self._users.admit(owner)):
            del self._hung_up[descriptor]
            return
        if peer is not None:
            peer.hang_up()
        if owner is not None:
            self._hung_up[descriptor] = True
            self._note_forbidden(owner)

    def _look_up(self, peer: PeerSocket) -> Owner | None:
        """None where the connection is closed, or the kernel cannot be asked."""
        try:
            with peer.borrow() as connection:
                if connection is not None:
                    return owner_of(connection)
        except OSError as error:
            cause = str(error)
        else:
            cause = "its socket cannot be copied"
        if peer.is_open:
            self._faults.warning(
                f"connection refused: its owner cannot be looked up ({cause}), probably because this process has no free file "
                "descriptors; raise its limit (ulimit -n, LimitNOFILE)"
            )
        return None

    def _note_forbidden(self, owner: Owner) -> None:
        self._faults.warning(
            "connection refused: it belongs to %s, and engines of this server's user and of root alone may connect from "
            "this machine; --engine-users admits others, a list of them or any",
            owner,
        )

    def _count_refused(self) -> None:
        """libzmq says nothing of a handshake that it refused but that some connection was closed.  At most those in
        `_in_handshake` can be under way, so what is missing beyond them was refused."""
        under_way = self._accepted - self._ok - self._refused - self._incomplete - self._forbidden
        if under_way:
            since = self._clock.monotonic() - HANDSHAKE_SECONDS
            while self._in_handshake and (oldest := next(iter(self._in_handshake.items())))[1] < since:
                del self._in_handshake[oldest[0]]
            self._refused += max(0, under_way - len(self._in_handshake))
        else:
            self._in_handshake.clear()
