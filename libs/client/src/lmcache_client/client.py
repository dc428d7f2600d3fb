"""A client of the engine protocol for one thread: tools, tests, benchmarks.

    with EngineClient("tcp://127.0.0.1:5555") as client:
        client.ping()
        first = client.send(END_SESSION, "r1")
        second = client.send(END_SESSION, "r2")
        client.receive(second), client.receive(first)

There is a method for each operation that core knows; `call`, `send` and `receive` take those of plugins as well.
"""

from __future__ import annotations

import os
import time
from math import ceil
from types import TracebackType
from typing import Any, Final, NewType, Self

import msgspec
import zmq

from lmcache_client.codec import OperationCodec
from lmcache_client.errors import LMCacheError, ProtocolError
from lmcache_client.exchange import Codecs, check_process, closed, connect, no_answer, not_sent, read_answer
from lmcache_client.operations import Operation
from lmcache_client.verbs import Verbs

Ticket = NewType("Ticket", int)
"""Names a request that was sent and whose answer has not been received."""
_LONGEST_MS: Final = 2**31 - 1


class EngineClient(Verbs):
    """One connection to a server.  Connects in the background: a server that is not there shows as a time-out, and one that
    comes back is found again, so that the call after a time-out is an ordinary one.

    Not thread-safe: one thread at a time, closing included.  Owns its socket; close it, or use it as a context manager.
    Every call raises NoAnswerError when no answer comes in time, and ProtocolError for an answer that is not of the
    operation's type; both are LMCacheErrors.  Of a payload only the number of arguments is checked before it is sent;
    the rest is the server's to do, so that tests can send what is wrong.
    """

    def __init__(self, endpoint: str, timeout_seconds: float = 10.0) -> None:
        """`timeout_seconds` is the default of all calls.  Raises LMCacheError when the endpoint cannot be parsed."""
        self.endpoint = endpoint
        self.timeout_seconds = timeout_seconds
        self._codecs = Codecs()
        self._waiting: dict[bytes, OperationCodec] = {}
        self._answers: dict[bytes, list[bytes]] = {}
        self._next = 0
        self._pid = os.getpid()
        self._context = zmq.Context()
        try:
            self._socket = connect(self._context, endpoint)
        except LMCacheError:
            self._context.term()
            raise

    def close(self) -> None:
        """Drops what was not sent yet and returns at once.  May be called again."""
        self._socket.close()
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def call(self, operation: Operation, *payload: Any, timeout_seconds: float | None = None) -> Any:
        """Send a request and wait for its answer."""
        return self.receive(self.send(operation, *payload), timeout_seconds)

    def send(self, operation: Operation, *payload: Any) -> Ticket:
        """Send a request without waiting for its answer; `receive` must be called for each."""
        check_process(self._pid, self.endpoint)
        if self._socket.closed:
            raise not_sent(operation, self.endpoint)
        codec = self._codecs.of(operation)
        ticket = Ticket(self._next)
        frames = [_uid(ticket), codec.frame, *codec.encode_payload(payload)]
        self._socket.setsockopt(zmq.SNDTIMEO, _milliseconds(self.timeout_seconds))
        try:
            self._socket.send_multipart(frames)
        except zmq.Again:
            raise no_answer(operation, self.endpoint, self.timeout_seconds) from None
        self._next += 1
        self._waiting[frames[0]] = codec
        return ticket

    def receive(self, ticket: Ticket, timeout_seconds: float | None = None) -> Any:
        """The answer to one request, in whatever order answers come.  After a time-out the ticket is void."""
        uid = _uid(ticket)
        if uid not in self._waiting:
            raise ValueError(f"request {ticket} is not outstanding: it was received before, timed out, or never sent")
        seconds = self.timeout_seconds if timeout_seconds is None else timeout_seconds
        deadline = time.monotonic() + seconds
        while uid not in self._answers:
            if self._socket.closed:
                raise closed(self._waiting.pop(uid).operation, self.endpoint)
            if not self._socket.poll(_milliseconds(deadline - time.monotonic())):
                raise no_answer(self._waiting.pop(uid).operation, self.endpoint, seconds)
            self._take_answer(self._socket.recv_multipart())
        return read_answer(self._waiting.pop(uid), uid, self._answers.pop(uid))

    def _take_answer(self, frames: list[bytes]) -> None:
        if len(frames) < 2:
            raise ProtocolError(f"an answer from {self.endpoint} has {len(frames)} frames, at least 2 belong there")
        uid, *rest = frames
        if uid in self._waiting:  # else a late answer to a request that timed out
            self._answers[uid] = rest


def _milliseconds(seconds: float) -> int:
    return ceil(min(max(0.0, seconds) * 1000, _LONGEST_MS))


def _uid(ticket: Ticket) -> bytes:
    return msgspec.msgpack.encode(ticket)
