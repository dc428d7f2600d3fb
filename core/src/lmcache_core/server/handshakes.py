"""Handshakes at the engine port: libzmq's ZAP handler and the monitor of the port's connections."""

from __future__ import annotations

import logging
import struct
from dataclasses import dataclass
from typing import Final

import zmq

from lmcache_core.contracts.clock import Clock
from lmcache_core.jobs.fault_log import FaultLog
from lmcache_core.server.engine_socket import EngineSocket
from lmcache_core.wire.sockets import DOMAIN

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


@dataclass(frozen=True, slots=True)
class HandshakeCounters:
    """Connections to the engine port since the server started.  Those that are neither ok, refused nor incomplete are in the
    middle of their handshake."""

    accepted: int = 0
    closed: int = 0
    ok: int = 0
    refused: int = 0
    """Closed by the server because the first bytes were no ZMTP 3: HTTP, another protocol, or ZeroMQ before 4.0."""
    incomplete: int = 0
    """Closed by the peer, or silent for too long, before the handshake was over."""


class Handshakes:
    """The one ZAP handler of the port's context, and the reader of its monitor; `run` is the thread's body.

    The port must be made and not yet bound.  libzmq waits with every handshake for an answer from here, so nothing is admitted
    while the thread is down.  `counters` belongs to any thread."""

    def __init__(self, port: EngineSocket, clock: Clock) -> None:
        self._clock = clock
        self._faults = FaultLog(logger, clock, "port=engine")
        self._zap = port.context.socket(zmq.ROUTER)
        self._zap.setsockopt(zmq.LINGER, 0)
        self._zap.bind(_ZAP_ENDPOINT)
        port.socket.monitor(_MONITOR_ENDPOINT, _EVENTS)
        self._monitor = port.context.socket(zmq.PAIR)
        self._monitor.setsockopt(zmq.RCVHWM, 0)  # libzmq's I/O thread would wait for room
        self._monitor.connect(_MONITOR_ENDPOINT)
        self._accepted = self._closed = self._ok = self._refused = self._incomplete = 0
        self._unsettled: dict[int, float] = {}
        """Descriptors of open connections that may be in the middle of their handshake, and when they were accepted."""
        self._failure = 0
        """The event before this one, if it says why a connection is closed: its EVENT_DISCONNECTED is the next."""

    @property
    def counters(self) -> HandshakeCounters:
        return HandshakeCounters(self._accepted, self._closed, self._ok, self._refused, self._incomplete)

    def run(self) -> None:
        """Ends when the port is closed."""
        poller = zmq.Poller()
        poller.register(self._zap, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)
        try:
            while True:
                poller.poll()
                self._take_events()
                self._take_request()
        except zmq.ContextTerminated:
            self.close()

    def close(self) -> None:
        """After `run` has ended, or where it never began.  The port's context cannot end before.  Again: nothing."""
        self._zap.close()
        self._monitor.close()

    def _take_request(self) -> None:
        try:
            frames = self._zap.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
        if len(frames) < _ZAP_FRAMES:
            return
        route, delimiter, version, request, domain, _, _, mechanism = frames[:_ZAP_FRAMES]
        admitted = version == _ZAP_VERSION and domain == DOMAIN and mechanism == b"NULL"
        status = (b"200", b"OK") if admitted else (b"400", b"no such domain or mechanism")
        self._zap.send_multipart([route, delimiter, _ZAP_VERSION, request, *status, b"", b""])

    def _take_events(self) -> None:
        while True:
            try:
                event = self._monitor.recv_multipart(zmq.NOBLOCK)[0]
            except zmq.Again:
                return
            self._take_event(*struct.unpack("=HI", event))

    def _take_event(self, kind: int, value: int) -> None:
        if kind == zmq.EVENT_ACCEPTED:
            self._accepted += 1
            self._unsettled[value] = self._clock.monotonic()
        elif kind == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._ok += 1
        elif kind == zmq.EVENT_DISCONNECTED:
            self._closed += 1
            self._unsettled.pop(value, None)
            if self._failure == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                self._incomplete += 1
            elif self._failure:
                self._note_refused()
        self._failure = kind if kind & (_FAILED | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL) else 0
        self._settle()

    def _settle(self) -> None:
        """libzmq says nothing of a handshake that it refused but that some connection was closed.  At most the unsettled
        ones can be under way, so what is missing beyond them was refused."""
        under_way = self._accepted - self._ok - self._refused - self._incomplete
        if under_way:
            since = self._clock.monotonic() - HANDSHAKE_SECONDS
            while self._unsettled and (oldest := next(iter(self._unsettled.items())))[1] < since:
                del self._unsettled[oldest[0]]
            for _ in range(under_way - len(self._unsettled)):
                self._note_refused()
        else:
            self._unsettled.clear()

    def _note_refused(self) -> None:
        self._refused += 1
        self._faults.warning(
            "connection refused: its first bytes are no ZMTP 3 (a web page, a port scanner, or a client with ZeroMQ before 4.0)"
        )
