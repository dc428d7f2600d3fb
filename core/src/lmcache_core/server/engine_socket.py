"""The ROUTER socket of the engine port: whole messages in and out, without blocking and without an exception where nothing
is wrong."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

import zmq

from lmcache_core.model.errors import ResourceError
from lmcache_core.wire.codec import Frame
from lmcache_core.wire.sockets import open_socket

logger = logging.getLogger(__name__)

ANSWERS_WAITING_MAX: Final = 256
"""Answers that may wait for one engine to read them; later ones are dropped."""
FRAMES_MAX: Final = 16
"""No operation has more; the rest of a longer message is received and thrown away."""
COPY_BELOW_BYTES: Final = 4096
"""Shorter frames are copied when they are received: that is cheaper than a view, and holds no buffer of the socket."""
SENT_COPIED_BELOW_BYTES: Final = 65536
"""Larger answers are sent from where they are."""
_MORE: Final = zmq.NOBLOCK | zmq.SNDMORE
_LAST: Final = zmq.NOBLOCK
_ENVELOPE_FRAMES: Final = 3

Envelope = tuple[bytes, bytes, bytes]
"""Connection, uid and operation: what an answer begins with."""


class Message(NamedTuple):
    envelope: Envelope
    payload: Sequence[Frame]


class EngineSocket:
    """One thread at a time."""

    def __init__(self, max_frame_bytes: int) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        """Of this port alone; other sockets in it must be closed once it is terminated."""
        self.socket = open_socket(self.context, zmq.ROUTER)
        """To be polled."""
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.setsockopt(zmq.MAXMSGSIZE, max_frame_bytes)
        self.socket.setsockopt(zmq.LINGER, 500)
        self.socket.setsockopt(zmq.SNDHWM, ANSWERS_WAITING_MAX)
        # pyzmq wraps these for draft sockets and tracking; four sends an answer make the wrapping count.
        self._receive = super(zmq.Socket, self.socket).recv
        self._send = super(zmq.Socket, self.socket).send
        self.dropped = 0
        """Messages without a readable envelope, and answers to peers that are gone or do not read."""

    def bind(self, host: str, port: int) -> str:
        """Open the port (0: any free one).  Returns the endpoint.  Raises ResourceError when it cannot be had."""
        try:
            self.socket.bind(f"tcp://{host}:{port or '*'}")
        except zmq.ZMQError as error:
            raise ResourceError(
                f"port {port} on {host} cannot be opened for engines ({error}); another server may be running there: "
                "choose another --port, or stop it"
            ) from None
        return self.socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def close(self) -> None:
        """Blocks until what was sent is on its way, for as long as the linger allows; later answers are dropped.
        Closing it again does nothing."""
        self.socket.close()
        self.context.term()

    def receive(self) -> Message | None:
        """One message, after polling has said that there is one.  None when there is none that could be answered."""
        receive = self._receive
        try:
            connection = receive(zmq.NOBLOCK)
        except zmq.Again:
            return None
        frames = [receive(0, False)]  # a ROUTER puts the connection before a message, which is never empty
        while frames[-1].more:
            frame = receive(0, False)
            if len(frames) < FRAMES_MAX:
                frames.append(frame)
            else:
                frames[-1] = frame
        if len(frames) < _ENVELOPE_FRAMES - 1:
            self.dropped += 1
            return None
        envelope = (connection, frames[0].bytes, frames[1].bytes)
        payload = [frame.bytes if len(frame) < COPY_BELOW_BYTES else frame.buffer for frame in frames[2:]]
        return Message(envelope, payload)

    def send(self, envelope: Envelope, result: Sequence[Frame]) -> None:
        """Send an answer, or drop it when the peer is gone or does not read."""
        connection, uid, operation = envelope
        send = self._send
        try:
            # Only the first frame can fail: with it the whole message has found its place.
            send(connection, _MORE)
            send(uid, _MORE)
            if not result:
                send(operation, _LAST)
                return
            send(operation, _MORE)
            for frame in result[:-1]:
                send(frame, _MORE)
            last = result[-1]
            if len(last) < SENT_COPIED_BELOW_BYTES:
                send(last, _LAST)
            else:
                send(last, _LAST, copy=False)
        except zmq.ZMQError as error:
            # EHOSTUNREACH: it is gone.  EAGAIN: it does not read.
            self.dropped += 1
            logger.debug("answer dropped connection=%s error=%s", connection.hex(), error)
