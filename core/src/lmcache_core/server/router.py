"""The engine port: one ROUTER socket, one thread that owns it.

Every request with a readable envelope is answered exactly once: with its handler's result, or with its operation's
negative value when nobody handles it, its payload cannot be read, its handler raises, or too much is waiting.  Anything
else is counted and dropped.  Receiving and sending never block; an engine that does not read loses its answers.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import select
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import zmq

from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.operation import DEFERRED, ELSEWHERE, Handler, HandlerMode
from lmcache_core.jobs.fault_log import FaultLog
from lmcache_core.jobs.inbox import Inbox
from lmcache_core.model.errors import ProtocolError, ResourceError
from lmcache_core.server.pools import AffinePool, Pool
from lmcache_core.wire.codec import Frame, OperationCodec, OperationTable, encode_result, refusal

logger = logging.getLogger(__name__)

FRAMES_MAX = 16
"""No operation has more; the rest of a longer message is received and thrown away."""
TIMERS_SWEPT = 256
"""Timers beyond which those of answered calls are looked for."""
BATCH = 64
"""Requests received before replies are looked at again."""
COPY_BELOW_BYTES = 65536
"""Larger answers are sent from where they are."""


ANSWERS_WAITING_MAX = 256
"""Answers that may wait for one engine to read them; later ones are dropped."""
SMALL_BYTES = 8192
"""An ordered request up to this size (some 2,000 tokens) is answered on the router thread if nothing is before it."""


class _Reply(NamedTuple):
    frames: Sequence[Frame]
    ends: bool
    """It answers a request that was counted as under way."""


class _Route(NamedTuple):
    codec: OperationCodec
    handler: Handler


class _Timer(NamedTuple):
    deadline: float
    order: int
    call: _Call
    fallback: Any


@dataclass(slots=True)
class RouterCounters:
    """Since the server started."""

    requests: int = 0
    refused: int = 0
    """Answered negatively without a handler's word: unknown, unreadable, failed or too many waiting."""
    dropped: int = 0
    """Not answered at all: no readable envelope, or a peer that is gone or does not read."""


class _Call:
    """Implements `contracts.operation.Call`."""

    __slots__ = ("_answered", "_envelope", "_router", "connection", "may_wait", "under_way")

    def __init__(self, router: Router, envelope: tuple[bytes, bytes, bytes]) -> None:
        self.connection = envelope[0]
        self._router = router
        self._envelope = envelope
        self._answered = False
        self.may_wait = False
        self.under_way = False

    def defer(self, seconds: float, fallback: Any) -> None:
        self._router.arm(seconds, self, fallback)

    def reply(self, result: Any) -> bool:
        return self.answer(encode_result(result))

    def answer(self, result: tuple[Frame, ...]) -> bool:
        """Send these result frames, on any thread.  False when the call had been answered."""
        if not self._is_first():
            return False
        self._router.post((*self._envelope, *result), self.under_way)
        return True

    def answer_now(self, result: tuple[Frame, ...]) -> None:
        """Send them, on the router's thread."""
        if self._is_first():
            self._router.send((*self._envelope, *result))

    @property
    def is_answered(self) -> bool:
        return self._answered

    def _is_first(self) -> bool:
        with self._router.answering:
            first, self._answered = not self._answered, True
        return first


class Router:
    """`run` is the thread's body.  `handlers` decide who answers what."""

    def __init__(
        self, handlers: Sequence[Handler], pooled: Pool, affine: AffinePool, max_frame_bytes: int, clock: Clock
    ) -> None:
        self._table = OperationTable(handler.operation for handler in handlers)
        self._handlers = {handler.operation.name: handler for handler in handlers}
        self._pooled = pooled
        self._affine = affine
        self._clock = clock
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.MAXMSGSIZE, max_frame_bytes)
        self._socket.setsockopt(zmq.LINGER, 500)
        self._socket.setsockopt(zmq.SNDHWM, ANSWERS_WAITING_MAX)
        self._replies: Inbox[_Reply | _Timer] = Inbox()
        self._timers: list[_Timer] = []
        self._under_way: dict[Frame, int] = {}
        """Requests of each connection that its worker has not answered; touched by the router thread only."""
        self._timers_swept = TIMERS_SWEPT
        self._order = itertools.count()
        self._stop = False
        self._faults = FaultLog(logger, clock, "port=engine")
        self.answering = threading.Lock()
        self.counters = RouterCounters()

    def bind(self, host: str, port: int) -> str:
        """Open the port (0: any free one).  Returns the endpoint.  Raises ResourceError when it cannot be had."""
        try:
            self._socket.bind(f"tcp://{host}:{port or '*'}")
        except zmq.ZMQError as error:
            raise ResourceError(
                f"port {port} on {host} cannot be opened for engines ({error}); another server may be running there: "
                "choose another --port, or stop it"
            ) from None
        return self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._replies.fileno(), select.POLLIN)
        while not self._stop:
            poller.poll(self._milliseconds_to_timer())
            self._send_replies()
            self._fire_timers()
            for _ in range(BATCH):
                if not self._receive():
                    break

    def stop(self) -> None:
        """Any thread."""
        self._stop = True
        self._replies.wake()

    def close(self) -> None:
        """After `run` has ended: send what is waiting, and close the port."""
        self._send_replies()
        self._socket.close()
        self._context.term()
        self._replies.close()

    # --- for calls

    def arm(self, seconds: float, call: _Call, fallback: Any) -> None:
        if not 0 <= seconds < math.inf:
            raise ValueError(f"a call cannot be deferred by {seconds} seconds")
        deadline = self._clock.monotonic() + seconds
        self._replies.post(_Timer(deadline, next(self._order), call, fallback))

    def post(self, frames: Sequence[Frame], ends: bool) -> None:
        self._replies.post(_Reply(frames, ends))

    def send(self, frames: Sequence[Frame]) -> None:
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK, copy=len(frames[-1]) < COPY_BELOW_BYTES)
        except zmq.ZMQError as error:
            # EHOSTUNREACH: it is gone.  EAGAIN: it does not read.
            self.counters.dropped += 1
            logger.debug("answer dropped connection=%s error=%s", bytes(frames[0]).hex(), error)

    # --- on the router's thread

    def _receive(self) -> bool:
        """Take one message off the socket.  False when there is none."""
        frames: list[zmq.Frame] = []
        try:
            frames.append(self._socket.recv(zmq.NOBLOCK, copy=False))
            while frames[-1].more:
                frame = self._socket.recv(copy=False)
                if len(frames) < FRAMES_MAX:
                    frames.append(frame)
                else:
                    frames[-1] = frame
        except zmq.Again:
            return False
        self.counters.requests += 1
        if len(frames) < 3:
            self.counters.dropped += 1
            return True
        envelope = (frames[0].bytes, frames[1].bytes, frames[2].bytes)
        self._dispatch(envelope, [frame.buffer for frame in frames[3:]])
        return True

    def _dispatch(self, envelope: tuple[bytes, bytes, bytes], payload: list[memoryview]) -> None:
        try:
            codec = self._table.find(envelope[2])
        except ProtocolError as error:
            self._refuse(envelope, refusal(envelope[2]), str(error))
            return
        route = _Route(codec, self._handlers[codec.operation.name])
        call = _Call(self, envelope)
        match route.handler.mode:
            case HandlerMode.POOLED:
                call.may_wait = True
                accepted = self._pooled.submit(lambda: self._answer_elsewhere(call, route, payload))
            case HandlerMode.AFFINE:
                accepted = self._give_to_worker(call, route, payload)
            case HandlerMode.INLINE | HandlerMode.ORDERED as mode:
                if mode is HandlerMode.INLINE or self._is_swift(envelope[0], payload):
                    result = self._answer(call, route, payload)
                    if isinstance(result, tuple):
                        call.answer_now(result)
                    if result is not ELSEWHERE:
                        return
                accepted = self._give_to_worker(call, route, payload)
        if not accepted:
            self._refuse(envelope, codec.negative, f"{codec.operation.name}: too many requests are waiting")

    def _is_swift(self, connection: bytes, payload: list[memoryview]) -> bool:
        return connection not in self._under_way and sum(map(len, payload)) <= SMALL_BYTES

    def _give_to_worker(self, call: _Call, route: _Route, payload: list[memoryview]) -> bool:
        call.may_wait = call.under_way = True
        accepted = self._affine.submit(call.connection, lambda: self._answer_elsewhere(call, route, payload))
        if accepted:
            self._under_way[call.connection] = self._under_way.get(call.connection, 0) + 1
        return accepted

    def _refuse(self, envelope: tuple[bytes, bytes, bytes], negative: tuple[Frame, ...], reason: str) -> None:
        self.counters.refused += 1
        self._faults.error(f"request refused reason={reason} connection={envelope[0].hex()}")
        self.send((*envelope, *negative))

    def _send_replies(self) -> None:
        self._replies.clear_wakes()
        while (item := self._replies.take()) is not None:
            if isinstance(item, _Reply):
                self.send(item.frames)
                if item.ends:
                    self._ended(item.frames[0])
            else:
                self._set_timer(item)

    def _ended(self, connection: Frame) -> None:
        left = self._under_way[connection] - 1
        if left:
            self._under_way[connection] = left
        else:
            del self._under_way[connection]

    def _set_timer(self, timer: _Timer) -> None:
        heapq.heappush(self._timers, timer)
        if len(self._timers) >= self._timers_swept:
            # Calls are mostly answered long before their time; what is left of them must not pile up.
            self._timers = [waiting for waiting in self._timers if not waiting.call.is_answered]
            heapq.heapify(self._timers)
            self._timers_swept = max(TIMERS_SWEPT, 2 * len(self._timers))

    def _fire_timers(self) -> None:
        now = self._clock.monotonic()
        while self._timers and self._timers[0].deadline <= now:
            timer = heapq.heappop(self._timers)
            timer.call.reply(timer.fallback)

    def _milliseconds_to_timer(self) -> int | None:
        if not self._timers:
            return None
        return max(0, int((self._timers[0].deadline - self._clock.monotonic()) * 1000) + 1)

    # --- on any thread

    def _answer_elsewhere(self, call: _Call, route: _Route, payload: list[memoryview]) -> None:
        result = self._answer(call, route, payload)
        if isinstance(result, tuple):
            call.answer(result)

    def _answer(self, call: _Call, route: _Route, payload: list[memoryview]) -> tuple[Frame, ...] | Any:
        """The result frames of the handler, or of the operation's negative value; or DEFERRED or ELSEWHERE."""
        operation = route.codec.operation
        try:
            result = route.handler.function(call, *route.codec.decode_payload(payload))
            if result is ELSEWHERE and call.may_wait:
                raise TypeError("a handler returned ELSEWHERE where it may take its time")
            if result is DEFERRED or result is ELSEWHERE:
                return result
            return encode_result(result)
        except ProtocolError as error:
            self._faults.error(f"request refused reason={error} connection={call.connection.hex()}")
        except Exception:  # noqa: BLE001 - a plugin boundary: handlers come from request modules
            self._faults.exception(f"request failed operation={operation.name} connection={call.connection.hex()}")
        self.counters.refused += 1
        return route.codec.negative
