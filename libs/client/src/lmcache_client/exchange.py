"""Requests of one connection that have not been answered, and the socket that they went over."""

from __future__ import annotations

import heapq
import os
import time
from collections.abc import Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec
import zmq

from lmcache_client.codec import OperationCodec, decode_operation_frame
from lmcache_client.errors import LMCacheError, NoAnswerError, ProtocolError
from lmcache_client.operations import Operation
from lmcache_client.sockets import open_socket

RECONNECT_MAX_MS: Final = 1000
"""Longest pause between two attempts to connect again.  Attempts start at 100 ms; ZMQ makes them by itself."""

Owner = TypeVar("Owner")


class ClosedError(NoAnswerError):
    """Nothing can be asked, since the connection is closed: that no answer came says nothing of the server."""


class Outcome(NamedTuple, Generic[Owner]):
    """How a request ended: with a value, or with an error."""

    owner: Owner
    value: Any
    error: LMCacheError | None


class Encoded(NamedTuple):
    """A request that is ready to be sent."""

    codec: OperationCodec
    frames: list[bytes]


class _Waiting(NamedTuple, Generic[Owner]):
    codec: OperationCodec
    owner: Owner
    seconds: float
    deadline: float


def connect(context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> zmq.Socket[bytes]:
    """A DEALER that connects in the background, and again whenever the connection is lost.  Raises LMCacheError when the
    endpoint cannot be parsed; the context is the caller's then, too."""
    socket = open_socket(context, zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
    try:
        socket.setsockopt(zmq.IPV6, "[" in endpoint)
        socket.connect(endpoint)
    except zmq.ZMQError as error:
        socket.close()
        raise LMCacheError(
            f"cannot connect to '{endpoint}': {error}; an endpoint is like tcp://127.0.0.1:5555"
        ) from None
    return socket


def no_answer(operation: Operation, endpoint: str, seconds: float) -> NoAnswerError:
    return NoAnswerError(
        f"no answer to '{operation.name}' from {endpoint} within {seconds:g} s; "
        "is a server running there, and does it speak the engine protocol?"
    )


def not_sent(operation: Operation, endpoint: str) -> ClosedError:
    return ClosedError(f"the connection to {endpoint} is closed; '{operation.name}' was not sent")


def closed(operation: Operation, endpoint: str) -> ClosedError:
    return ClosedError(f"the connection to {endpoint} was closed before '{operation.name}' was answered")


def check_process(pid: int, endpoint: str) -> None:
    """Raises LMCacheError where this is not the process that opened the connection."""
    if os.getpid() != pid:
        raise LMCacheError(f"the connection to {endpoint} was made in another process; open one after the fork")


def read_answer(codec: OperationCodec, uid: bytes, frames: Sequence[bytes]) -> Any:
    """The value in an answer's frames behind the uid.  Raises ProtocolError."""
    operation_frame, *result = frames
    answered = decode_operation_frame(operation_frame)
    if answered not in (codec.operation.wire_id, codec.operation.name):
        number = msgspec.msgpack.decode(uid)
        raise ProtocolError(f"request {number} was '{codec.operation.name}', its answer says {answered!r}")
    return codec.decode_result(result)


class Codecs:
    """The codecs of the operations that were used.  Any thread."""

    def __init__(self) -> None:
        self._codecs: dict[str, OperationCodec] = {}

    def of(self, operation: Operation) -> OperationCodec:
        codec = self._codecs.get(operation.name)
        if codec is None or codec.operation is not operation:
            codec = self._codecs[operation.name] = OperationCodec(operation)
        return codec


class Exchange(Generic[Owner]):
    """One DEALER, and an owner for each request that was sent and has not ended.

    Owns its socket, and no thread: one thread at a time, any thread.  Nothing waits here.  A thread that waits for
    `descriptor` must call `arrived` first, and again whenever `send` was called in the meantime, also where it
    failed: ZMQ's descriptor is edge-triggered, and sending may consume the edge."""

    def __init__(self, endpoint: str) -> None:
        """Raises LMCacheError when the endpoint cannot be parsed."""
        self.endpoint = endpoint
        self._codecs = Codecs()
        self._waiting: dict[bytes, _Waiting[Owner]] = {}
        self._deadlines: list[tuple[float, bytes]] = []
        self._next = 0
        self._context = zmq.Context()
        try:
            self._socket = connect(self._context, endpoint)
        except LMCacheError:
            self._context.term()
            raise
        self.descriptor = int(self._socket.getsockopt(zmq.FD))
        self._pid = os.getpid()

    def close(self) -> None:
        """Drops what was not sent yet and returns at once.  May be called again."""
        self._socket.close()
        self._context.term()

    def encode(self, operation: Operation, payload: Sequence[Any]) -> Encoded:
        """Any thread, also beside others.  Raises ProtocolError when the number of arguments is not the operation's, and
        LMCacheError in a forked process, whose socket is its parent's."""
        check_process(self._pid, self.endpoint)
        codec = self._codecs.of(operation)
        return Encoded(codec, [codec.frame, *codec.encode_payload(payload)])

    def send(self, request: Encoded, seconds: float, owner: Owner) -> bytes:
        """Its uid.  Raises NoAnswerError where the limit of requests that wait for a server is reached."""
        uid = self.tell(request)
        deadline = time.monotonic() + seconds
        self._waiting[uid] = _Waiting(request.codec, owner, seconds, deadline)
        heapq.heappush(self._deadlines, (deadline, uid))
        return uid

    def tell(self, request: Encoded) -> bytes:
        """The same without an owner: its answer is taken in and dropped."""
        codec, frames = request
        uid = msgspec.msgpack.encode(self._next)
        try:
            self._socket.send_multipart([uid, *frames], zmq.NOBLOCK)
        except zmq.Again:
            raise NoAnswerError(
                f"'{codec.operation.name}' was not sent to {self.endpoint}: as many requests as the socket takes wait to "
                "be sent; is a server running there?"
            ) from None
        self._next += 1
        return uid

    def arrived(self) -> list[Outcome[Owner]]:
        """Everything that was answered by now."""
        outcomes: list[Outcome[Owner]] = []
        while int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            uid, *rest = self._socket.recv_multipart(zmq.NOBLOCK)
            waiting = self._waiting.pop(uid, None)
            if waiting is not None:  # else it was forgotten, or its answer is not needed
                outcomes.append(self._read(waiting, uid, rest))
        return outcomes

    def expired(self) -> tuple[list[Outcome[Owner]], float | None]:
        """Requests whose time is over, and the seconds until the next one's is; None without one."""
        outcomes: list[Outcome[Owner]] = []
        now = time.monotonic()
        while self._deadlines:
            deadline, uid = self._deadlines[0]
            waiting = self._waiting.get(uid)
            if waiting is not None and deadline > now:
                return outcomes, deadline - now
            heapq.heappop(self._deadlines)
            if waiting is not None:
                del self._waiting[uid]
                error = no_answer(waiting.codec.operation, self.endpoint, waiting.seconds)
                outcomes.append(Outcome(waiting.owner, None, error))
        return outcomes, None

    def forget(self, uid: bytes) -> None:
        """Stop waiting for it; an answer that still comes is dropped."""
        self._waiting.pop(uid, None)

    def abandon(self) -> list[Outcome[Owner]]:
        """End every request, because the connection is closed."""
        waiting = list(self._waiting.values())
        self._waiting.clear()
        self._deadlines.clear()
        return [Outcome(each.owner, None, closed(each.codec.operation, self.endpoint)) for each in waiting]

    @property
    def outstanding(self) -> int:
        return len(self._waiting)

    def ends_first(self, uid: bytes) -> bool:
        """Is this the request whose time is over before all others?"""
        return bool(self._deadlines) and self._deadlines[0][1] == uid

    def _read(self, waiting: _Waiting[Owner], uid: bytes, frames: list[bytes]) -> Outcome[Owner]:
        try:
            if not frames:
                raise ProtocolError(f"an answer from {self.endpoint} has 1 frames, at least 2 belong there")
            return Outcome(waiting.owner, read_answer(waiting.codec, uid, frames), None)
        except ProtocolError as error:
            return Outcome(waiting.owner, None, error)
