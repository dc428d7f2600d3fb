"""Answers that wait because their connection reads more slowly than it asks."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Final

from lmcache_client.codec import Frame
from lmcache_core.contracts.clock import Clock
from lmcache_core.jobs.fault_log import FaultLog
from lmcache_core.server.peer_socket import PeerSocket

logger = logging.getLogger(__name__)

BYTES_MAX: Final = 64 * 2**20
"""While more than this waits for a connection, its further requests that may be refused are."""
LARGE_ANSWERS: Final = 8
"""So many answers may wait whatever their size: one of a few chunks can be larger than BYTES_MAX, and waits although its
connection reads, until libzmq has sent the one before it."""
ANSWERS_MAX: Final = 250_000
"""A connection for which more answers wait asks without reading, and is closed."""
HUNG_UP_MAX: Final = 4096
"""Connections that are remembered as closed by this server."""
ANSWER_BYTES: Final = 400
"""What a waiting answer takes besides its frames."""
PAUSE_FIRST_SECONDS: Final = 0.001
PAUSE_MAX_SECONDS: Final = 0.05
"""libzmq does not tell when a peer of a ROUTER can be sent to again, so it is tried, at pauses that double."""

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
        self._queues: dict[bytes, _Queue] = {}
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

    def __contains__(self, connection: bytes) -> bool:
        return connection in self._queues

    def __len__(self) -> int:
        """Answers that wait."""
        return sum(len(queue.answers) for queue in list(self._queues.values()))

    @property
    def size_bytes(self) -> int:
        """Of the frames that wait, and of what keeps them."""
        return sum(queue.bytes for queue in list(self._queues.values()))

    def add(self, envelope: Envelope, result: Sequence[Frame]) -> None:
        """Send this after what waits for the connection already."""
        connection, now = envelope[0], self._clock.monotonic()
        queue = self._queues.get(connection)
        if queue is None:
            queue = self._queues[connection] = _Queue(now)
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
        queue = self._queues.pop(connection, None)
        if queue is not None:
            self.dropped += queue.drop()
            self._note_congestion(connection, queue)

    def retry(self) -> None:
        """Send what is taken by now, and close what reads nothing."""
        now = self._clock.monotonic()
        for connection, queue in list(self._queues.items()):
            if queue.retry_at <= now:
                self._retry(connection, queue, now)
        self.retry_at = min((queue.retry_at for queue in self._queues.values()), default=math.inf)

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
            del self._queues[connection]
        elif sent:
            queue.progress_at, queue.pause = now, PAUSE_FIRST_SECONDS
        else:
            queue.pause = min(queue.pause * 2, PAUSE_MAX_SECONDS)
            self._watch(connection, queue, now)
        queue.retry_at = now + queue.pause
        self._note_congestion(connection, queue)

    def _watch(self, connection: bytes, queue: _Queue, now: float) -> None:
        """libzmq's queue moves by hundreds of answers; the socket tells of a peer that reads one now and then."""
        socket = self._socket_of(connection)
        if queue.is_closed:
            if socket is None or not socket.is_open:
                del self._queues[connection]
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
        is_congested = connection in self._queues and (queue.is_closed or queue.bytes > limit)
        if is_congested != (connection in self.congested):
            self.congested = self.congested ^ {connection}
