"""A client of the engine protocol, for tools and tests.

    with EngineClient("tcp://127.0.0.1:5555") as client:
        client.ping()
        first = client.send(END_SESSION, "r1")
        second = client.send(END_SESSION, "r2")
        client.receive(second), client.receive(first)

There is a method for each operation that core knows; `call`, `send` and `receive` take those of plugins as well.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import ceil
from types import TracebackType
from typing import Any, NewType, Self

import msgspec
import zmq

from lmcache_core.contracts.operation import Operation
from lmcache_core.model.errors import LMCacheError, ProtocolError
from lmcache_core.wire import operations as ops
from lmcache_core.wire.codec import OperationCodec, decode_operation_frame
from lmcache_core.wire.messages import (
    BlockAllocation,
    EngineDrivenRegistration,
    EngineKey,
    PrepareRetrieveReply,
    PrepareStoreReply,
    SharedMemoryOffer,
)

Ticket = NewType("Ticket", int)
"""Names a request that was sent and whose answer has not been received."""

_STATUS_POLL_SECONDS = 0.005


class EngineClient:
    """One connection to a server.  Connects in the background: a server that is not there shows as a time-out.

    Not thread-safe: one thread at a time.  Owns its socket; close it, or use it as a context manager.
    Every call raises LMCacheError when no answer comes in time, and ProtocolError (one of them) for an answer that is
    not of the operation's type.  Of a payload only the number of arguments is checked before it is sent;
    the rest is the server's to do, so that tests can send what is wrong.
    """

    def __init__(self, endpoint: str, timeout_seconds: float = 10.0) -> None:
        """`timeout_seconds` is the default of all calls.  Raises LMCacheError when the endpoint cannot be parsed."""
        self.endpoint = endpoint
        self._timeout_seconds = timeout_seconds
        self._codecs: dict[str, OperationCodec] = {}
        self._waiting: dict[bytes, OperationCodec] = {}
        self._answers: dict[bytes, list[bytes]] = {}
        self._next = 0
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        try:
            self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise LMCacheError(
                f"cannot connect to '{endpoint}': {error}; an endpoint is like tcp://127.0.0.1:5555"
            ) from None

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

    # Any operation

    def call(self, operation: Operation, *payload: Any, timeout_seconds: float | None = None) -> Any:
        """Send a request and wait for its answer."""
        return self.receive(self.send(operation, *payload), timeout_seconds)

    def _value(self, operation: Operation, *payload: Any, timeout_seconds: float | None = None) -> Any:
        """As `call`, for operations whose answer always has a value."""
        value = self.call(operation, *payload, timeout_seconds=timeout_seconds)
        if value is None:
            raise ProtocolError(
                f"{self.endpoint} answered '{operation.name}' without a value; does it serve that operation?"
            )
        return value

    def send(self, operation: Operation, *payload: Any) -> Ticket:
        """Send a request without waiting for its answer; `receive` must be called for each."""
        codec = self._codecs.get(operation.name)
        if codec is None or codec.operation is not operation:
            codec = self._codecs[operation.name] = OperationCodec(operation)
        ticket = Ticket(self._next)
        frames = [_uid(ticket), codec.frame, *codec.encode_payload(payload)]
        self._socket.setsockopt(zmq.SNDTIMEO, int(self._timeout_seconds * 1000))
        try:
            self._socket.send_multipart(frames)
        except zmq.Again:
            raise self._timed_out(operation, self._timeout_seconds) from None
        self._next += 1
        self._waiting[frames[0]] = codec
        return ticket

    def receive(self, ticket: Ticket, timeout_seconds: float | None = None) -> Any:
        """The answer to one request, in whatever order answers come.  After a time-out the ticket is void."""
        uid = _uid(ticket)
        if uid not in self._waiting:
            raise ValueError(f"request {ticket} is not outstanding: it was received before, timed out, or never sent")
        seconds = self._timeout_seconds if timeout_seconds is None else timeout_seconds
        deadline = time.monotonic() + seconds
        while uid not in self._answers:
            remaining = deadline - time.monotonic()
            if not self._socket.poll(max(0, ceil(remaining * 1000))):
                raise self._timed_out(self._waiting.pop(uid).operation, seconds)
            self._take_answer(self._socket.recv_multipart())
        codec = self._waiting.pop(uid)
        operation_frame, *result = self._answers.pop(uid)
        answered = decode_operation_frame(operation_frame)
        if answered not in (codec.operation.wire_id, codec.operation.name):
            raise ProtocolError(f"request {ticket} was '{codec.operation.name}', its answer says {answered!r}")
        return codec.decode_result(result)

    def _take_answer(self, frames: list[bytes]) -> None:
        if len(frames) < 2:
            raise ProtocolError(f"an answer from {self.endpoint} has {len(frames)} frames, at least 2 belong there")
        uid, *rest = frames
        if uid in self._waiting:  # else a late answer to a request that timed out
            self._answers[uid] = rest

    def _timed_out(self, operation: Operation, seconds: float) -> LMCacheError:
        return LMCacheError(
            f"no answer to '{operation.name}' from {self.endpoint} within {seconds:g} s; "
            "is a server running there, and does it speak the engine protocol?"
        )

    # Management

    def get_chunk_size(self) -> int:
        return int(self._value(ops.GET_CHUNK_SIZE))

    def get_experimental(self) -> list[str]:
        return list(self._value(ops.GET_EXPERIMENTAL))

    def ping(self, instance_id: int | None = None, timeout_seconds: float | None = None) -> bool:
        return bool(self._value(ops.PING, instance_id, timeout_seconds=timeout_seconds))

    def noop(self) -> str:
        return str(self._value(ops.NOOP))

    def clear(self, force: bool = False) -> None:
        self.call(ops.CLEAR, force)

    # The scheduler's side

    def lookup(self, key: EngineKey, tp_size: int = 1) -> None:
        self.call(ops.LOOKUP, key, tp_size)

    def query_prefetch_status(self, request_id: str) -> int | None:
        """Hit chunks, once; None while the lookup is still running."""
        hits: int | None = self.call(ops.QUERY_PREFETCH_STATUS, request_id)
        return hits

    def wait_prefetch_status(self, request_id: str, timeout_seconds: float) -> int | None:
        """As `query_prefetch_status`, but the server waits.  None after that time; the answer has the client's own
        time-out on top."""
        seconds = timeout_seconds + self._timeout_seconds
        hits: int | None = self.call(
            ops.WAIT_PREFETCH_STATUS, request_id, float(timeout_seconds), timeout_seconds=seconds
        )
        return hits

    def lookup_hits(self, key: EngineKey, tp_size: int = 1) -> int:
        """Look up and ask until the answer is there, as a scheduler does over several steps."""
        self.lookup(key, tp_size)
        deadline = time.monotonic() + self._timeout_seconds
        while (hits := self.query_prefetch_status(key.request_id)) is None:
            if time.monotonic() > deadline:
                raise LMCacheError(
                    f"the lookup of '{key.request_id}' is still running after {self._timeout_seconds:g} s"
                )
            time.sleep(_STATUS_POLL_SECONDS)
        return hits

    def free_lookup_locks(self, key: EngineKey, tp_size: int = 1) -> None:
        self.call(ops.FREE_LOOKUP_LOCKS, key, tp_size)

    def end_session(self, request_id: str) -> None:
        self.call(ops.END_SESSION, request_id)

    def report_block_allocation(self, process_id: int, model_name: str, records: Sequence[BlockAllocation]) -> None:
        self.call(ops.REPORT_BLOCK_ALLOCATION, process_id, model_name, list(records))

    # The worker's side

    def register_engine_driven(self, registration: EngineDrivenRegistration) -> SharedMemoryOffer:
        offer: SharedMemoryOffer = self._value(ops.REGISTER_ENGINE_DRIVEN, registration)
        return offer

    def unregister_engine_driven(self, instance_id: int) -> None:
        self.call(ops.UNREGISTER_ENGINE_DRIVEN, instance_id)

    def prepare_store(self, key: EngineKey, instance_id: int) -> PrepareStoreReply:
        reply: PrepareStoreReply = self._value(ops.PREPARE_STORE, key, instance_id)
        return reply

    def commit_store(self, key: EngineKey, instance_id: int, data: bytes = b"") -> bool:
        return bool(self._value(ops.COMMIT_STORE, key, instance_id, data))

    def prepare_retrieve(self, key: EngineKey, instance_id: int) -> PrepareRetrieveReply:
        reply: PrepareRetrieveReply = self._value(ops.PREPARE_RETRIEVE, key, instance_id)
        return reply

    def commit_retrieve(self, key: EngineKey, instance_id: int) -> bool:
        return bool(self._value(ops.COMMIT_RETRIEVE, key, instance_id))


def _uid(ticket: Ticket) -> bytes:
    return msgspec.msgpack.encode(ticket)
