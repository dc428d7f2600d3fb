"""The ROUTER socket of the engine port: whole messages in and out, without blocking and without an exception where nothing
is wrong.  Answers to a connection that reads slowly wait in a queue of that connection."""

from __future__ import annotations

import errno
import logging
import math
import os
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple

import zmq

from lmcache_client.codec import Frame
from lmcache_client.errors import ResourceError
from lmcache_client.sockets import open_socket
from lmcache_core.contracts.clock import Clock
from lmcache_core.jobs.fault_log import FaultLog
from lmcache_core.server.peers import SCHEME, PeerSocket, UnixListener

logger = logging.getLogger(__name__)


BYTES_MAX: Final = 64 * 2**20
"""While more than this waits for a connection, its further requests that may be refused are."""
LARGE_ANSWERS: Final = 8
"""This many answers may wait whatever their size: one of a few chunks can be larger than BYTES_MAX, and waits although its
connection reads, until libzmq has sent the one before it."""
ANSWERS_MAX: Final = 250_000
"""A connection for which more answers wait asks without reading, and is closed."""
HUNG_UP_MAX: Final = 4096
"""Connections that are remembered as closed by this server."""
ANSWER_BYTES: Final = 400
"""What a waiting answer takes besides its frames."""
PAUSE_FIRST_SECONDS: Final = 0.001
PAUSE_MAX_SECONDS: Final = 0.05
"""libzmq does not notify when a peer of a ROUTER can be sent to again, so it is tried, at pauses that double."""

Envelope = tuple[bytes, bytes, bytes]
"""Connection, uid and operation: what an answer begins with."""


class Sent(Enum):
    DONE = auto()
    FULL = auto()
    """So much waits in libzmq for this peer that it takes no more."""
    GONE = auto()
    """The connection is closed."""


class _Queue:
    __slots__ = ("answers", "bytes", "is_closed", "largest", "mark", "pause", "progress_at", "retry_at")

    def __init__(self, now: float) -> None:
        self.answers: deque[tuple[Envelope, Sequence[Frame]]] = deque()
        self.bytes = 0
        self.largest = 0
        """The most bytes of one answer since the queue was last empty."""
        self.progress_at = now
        """When it was last seen to read."""
        self.mark: int | None = None
        self.pause = PAUSE_FIRST_SECONDS
        self.retry_at = now + self.pause
        self.is_closed = False
        """It was hung up; what is still answered is dropped until libzmq has closed it, too."""

    def drop(self) -> int:
        dropped = len(self.answers)
        self.answers.clear()
        self.bytes = 0
        return dropped


class WaitingAnswers:
    """In order for each connection.  A connection that reads nothing for `patience_seconds` is closed: answers that wait for it
    are dropped, counted and logged.  One thread at a time; `congested` and the counters belong to any."""

    def __init__(
        self,
        send: Callable[[Envelope, Sequence[Frame]], Sent],
        socket_of: Callable[[bytes], PeerSocket | None],
        clock: Clock,
        patience_seconds: float,
    ) -> None:
        """`send` gives an answer to libzmq; `socket_of` names the socket of a connection that has asked."""
        self._send, self._socket_of = send, socket_of
        self._clock = clock
        self._patience_seconds = patience_seconds
        self._faults = FaultLog(logger, clock, "port=engine")
        self.queues: dict[bytes, _Queue] = {}
        """By connection; one that reads as fast as it asks has none."""
        self.congested: frozenset[bytes] = frozenset()
        """Connections for which so much waits that their requests are not to be carried out."""
        self.retry_at = math.inf
        """When `retry` is to be called."""
        self.dropped = 0
        """Answers to connections that were closed while they waited."""
        self.closed = 0
        """Connections that were closed because they did not read."""
        self.hung_up: deque[bytes] = deque(maxlen=HUNG_UP_MAX)
        """The latest of these, whose clients may live.  Any thread."""

    def __len__(self) -> int:
        """Answers that wait."""
        return sum(len(queue.answers) for queue in list(self.queues.values()))

    @property
    def size_bytes(self) -> int:
        """Of the frames that wait, and of what keeps them."""
        return sum(queue.bytes for queue in list(self.queues.values()))

    def add(self, envelope: Envelope, result: Sequence[Frame]) -> None:
        """Send this after what waits for the connection already."""
        connection, now = envelope[0], self._clock.monotonic()
        queue = self.queues.get(connection)
        if queue is None:
            queue = self.queues[connection] = _Queue(now)
        if queue.is_closed:
            self.dropped += 1
            return
        queue.answers.append((envelope, result))
        size = ANSWER_BYTES + sum(map(len, result))
        queue.bytes += size
        queue.largest = max(queue.largest, size)
        self.retry_at = min(self.retry_at, queue.retry_at)
        if len(queue.answers) > ANSWERS_MAX:
            self._close(connection, queue, f"{ANSWERS_MAX} answers wait for it")
        self._note_congestion(connection, queue)

    def forget(self, connection: bytes) -> None:
        """Drop what waits for a connection that is closed, and whose id another one has by now."""
        queue = self.queues.pop(connection, None)
        if queue is not None:
            self.dropped += queue.drop()
            self._note_congestion(connection, queue)

    def retry(self) -> None:
        """Send what is taken by now, and close what reads nothing."""
        now = self._clock.monotonic()
        for connection, queue in list(self.queues.items()):
            if queue.retry_at <= now:
                self._retry(connection, queue, now)
        self.retry_at = min((queue.retry_at for queue in self.queues.values()), default=math.inf)

    def _retry(self, connection: bytes, queue: _Queue, now: float) -> None:
        sent = 0
        while queue.answers:
            envelope, result = queue.answers[0]
            outcome = self._send(envelope, result)
            if outcome is Sent.GONE:
                self.dropped += queue.drop()
            if outcome is not Sent.DONE:
                break
            queue.answers.popleft()
            queue.bytes -= ANSWER_BYTES + sum(map(len, result))
            sent += 1
        if not queue.answers and not queue.is_closed:
            del self.queues[connection]
        elif sent:
            queue.progress_at, queue.pause = now, PAUSE_FIRST_SECONDS
        else:
            queue.pause = min(queue.pause * 2, PAUSE_MAX_SECONDS)
            self._watch(connection, queue, now)
        queue.retry_at = now + queue.pause
        self._note_congestion(connection, queue)

    def _watch(self, connection: bytes, queue: _Queue, now: float) -> None:
        """libzmq's queue moves by hundreds of answers; the socket shows a peer that reads one now and then."""
        socket = self._socket_of(connection)
        if queue.is_closed:
            if socket is None or not socket.is_open:
                del self.queues[connection]
            return
        mark = socket.read_mark() if socket else None
        if mark != queue.mark:
            queue.mark, queue.progress_at = mark, now
        elif now - queue.progress_at >= self._patience_seconds:
            self._close(connection, queue, f"it has read nothing for {self._patience_seconds:g} s")

    def _close(self, connection: bytes, queue: _Queue, reason: str) -> None:
        socket = self._socket_of(connection)
        if socket is not None:
            self.hung_up.append(connection)
            socket.hang_up()
        queue.is_closed = True
        size, dropped = queue.bytes, queue.drop()
        self.closed += 1
        self.dropped += dropped
        self._faults.warning(
            f"connection closed: {reason}; an engine that is frozen, or asks without reading "
            f"connection={connection.hex()} answers_lost={dropped} bytes={size}"
        )

    def _note_congestion(self, connection: bytes, queue: _Queue) -> None:
        limit = max(BYTES_MAX, LARGE_ANSWERS * queue.largest)
        is_congested = connection in self.queues and (queue.is_closed or queue.bytes > limit)
        if is_congested != (connection in self.congested):
            self.congested = self.congested ^ {connection}


LIBZMQ_ANSWERS_MAX: Final = 256
"""Answers that libzmq may hold for one engine; those behind them wait here."""
FRAMES_MAX: Final = 16
"""No operation has more; the rest of a longer message is received and thrown away."""
COPY_BELOW_BYTES: Final = 4096
"""Shorter frames are copied when they are received: that is cheaper than a view, and holds no buffer of the socket."""
SENT_COPIED_BELOW_BYTES: Final = 65536
"""Larger answers are sent from where they are."""
_MORE: Final = zmq.NOBLOCK | zmq.SNDMORE
_LAST: Final = zmq.NOBLOCK
_ENVELOPE_FRAMES: Final = 3
PATIENCE_SECONDS: Final = 60.0
"""How long a connection may leave its answers unread."""
_PEERS_SWEPT: Final = 256
"""Connections beyond which those that are closed are forgotten."""


class Message(NamedTuple):
    envelope: Envelope
    payload: Sequence[Frame]


class EngineSocket:
    """One thread at a time."""

    def __init__(self, max_frame_bytes: int, clock: Clock, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        """Of this port alone; other sockets in it must be closed once it is terminated."""
        self.socket = open_socket(self.context, zmq.ROUTER)
        """To be polled."""
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.setsockopt(zmq.MAXMSGSIZE, max_frame_bytes)
        self.socket.setsockopt(zmq.LINGER, 500)
        self.socket.setsockopt(zmq.SNDHWM, LIBZMQ_ANSWERS_MAX)
        # pyzmq wraps these for draft sockets and tracking; four sends an answer make the wrapping count.
        self._receive = super(zmq.Socket, self.socket).recv
        self._send = super(zmq.Socket, self.socket).send
        self._peers: dict[bytes, PeerSocket | None] = {}
        """Sockets of the connections that have asked."""
        self._peers_swept = _PEERS_SWEPT
        self._borrowed: dict[bytes, deque[tuple[zmq.MessageTracker, int]]] = {}
        """Large answers that libzmq may still be sending from where they are."""
        self.waiting = WaitingAnswers(self._try_send, self._peers.get, clock, patience_seconds)
        self._dropped = 0
        self._listener: UnixListener | None = None

    @property
    def dropped(self) -> int:
        """Messages without a readable envelope, and answers to connections that are closed.  Any thread."""
        return self._dropped + self.waiting.dropped

    def bind(self, host: str, port: int) -> str:
        """Open the port (0: any free one), or the Unix socket where the host is ipc:///path.  Returns the endpoint.  Raises
        ResourceError when it is not available."""
        if host.startswith(SCHEME):
            listener = UnixListener(host)
            try:
                self.socket.setsockopt(zmq.USE_FD, listener.descriptor)
                self.socket.bind(host)
            except zmq.ZMQError as error:
                os.close(listener.descriptor)
                listener.close()
                raise ResourceError(f"--host {host} cannot be opened for engines: {error}") from None
            self._listener = listener
            return host
        address = host.removeprefix("[").removesuffix("]")
        is_ipv6 = ":" in address
        try:
            self.socket.setsockopt(zmq.IPV6, is_ipv6)
            self.socket.bind(f"tcp://{f'[{address}]' if is_ipv6 else address}:{port or '*'}")
        except zmq.ZMQError as error:
            raise ResourceError(
                f"port {port} on {host} cannot be opened for engines ({error}); another server may be running there: "
                "choose another --port, or stop it"
            ) from None
        return self.socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def is_connected(self, connection: bytes) -> bool:
        """False when its client has closed it or is dead.  A connection that was hung up here says nothing of its client, and
        counts as connected for ever.  Any thread."""
        peer = self._peers.get(connection)
        return (peer is not None and peer.is_open) or connection in self.waiting.hung_up

    def close(self) -> None:
        """Blocks until what was sent is on its way, for as long as the linger allows; later answers are dropped.
        Closing it again does nothing."""
        self.socket.close()
        self.context.term()
        if self._listener is not None:
            self._listener.close()

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
            self._dropped += 1
            return None
        if connection not in self._peers or (connection[0] and self._is_reconnected(connection)):
            self._meet(connection, frames[0])
        envelope = (connection, frames[0].bytes, frames[1].bytes)
        payload = [frame.bytes if len(frame) < COPY_BELOW_BYTES else frame.buffer for frame in frames[2:]]
        return Message(envelope, payload)

    def send(self, envelope: Envelope, result: Sequence[Frame]) -> None:
        """Send an answer, now or when its connection has read what is before it.  Dropped when that is closed."""
        if envelope[0] in self.waiting.queues:
            self.waiting.add(envelope, result)
            return
        sent = self._try_send(envelope, result)
        if sent is Sent.FULL:
            self.waiting.add(envelope, result)
        elif sent is Sent.GONE:
            self._dropped += 1

    def _try_send(self, envelope: Envelope, result: Sequence[Frame]) -> Sent:
        connection, uid, operation = envelope
        send = self._send
        size = len(result[-1]) if result else 0
        if size >= SENT_COPIED_BELOW_BYTES and not self._may_borrow(connection, size):
            return Sent.FULL
        try:
            # Only the first frame can fail: with it the whole message has found its place.
            send(connection, _MORE)
        except zmq.ZMQError as error:
            if error.errno == errno.EAGAIN:
                return Sent.FULL
            if error.errno == errno.EHOSTUNREACH:
                return Sent.GONE
            raise
        send(uid, _MORE)
        if not result:
            send(operation, _LAST)
            return Sent.DONE
        send(operation, _MORE)
        for frame in result[:-1]:
            send(frame, _MORE)
        if size < SENT_COPIED_BELOW_BYTES:
            send(result[-1], _LAST)
        else:
            self._borrowed.setdefault(connection, deque()).append((send(result[-1], _LAST, False, True), size))
        return Sent.DONE

    def _may_borrow(self, connection: bytes, size: int) -> bool:
        """libzmq counts answers, not bytes."""
        borrowed = self._borrowed.get(connection)
        while borrowed and borrowed[0][0].done:
            borrowed.popleft()
        if not borrowed:
            self._borrowed.pop(connection, None)
            return True
        return size + sum(each for _, each in borrowed) <= BYTES_MAX

    def _is_reconnected(self, connection: bytes) -> bool:
        """A client that chose its id has connected again.  Ids that libzmq chooses begin with 0, and are used once."""
        peer = self._peers[connection]
        if peer is None or peer.is_open:
            return False
        self.waiting.forget(connection)
        return True

    def _meet(self, connection: bytes, frame: zmq.Frame) -> None:
        """The descriptor may be another connection's by now where this one is closed; then nothing waits for this one, and
        nothing is done to its socket."""
        if len(self._peers) >= self._peers_swept:
            closed = [known for known, peer in self._peers.items() if peer is None or not peer.is_open]
            for known in closed:
                del self._peers[known]
                self._borrowed.pop(known, None)
            self._peers_swept = max(_PEERS_SWEPT, 2 * len(self._peers))
        try:
            descriptor = int(frame.get(zmq.SRCFD))
        except zmq.ZMQError:  # of no connection that libzmq knows a descriptor of
            self._peers[connection] = None
        else:
            self._peers[connection] = PeerSocket.of(descriptor)
