"""The engine port: one ROUTER socket, one thread that owns it.

Every request with a readable envelope is answered exactly once: with its handler's result, or with its operation's
negative value when nobody handles it, its payload cannot be read, its handler raises, or too much is waiting.  Anything
else is counted and dropped.  Receiving and sending never block; an engine that does not read loses its answers.
"""

from __future__ import annotations

import itertools
import logging
import math
import select
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import zmq

from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.operation import DEFERRED, ELSEWHERE, Handler, HandlerMode
from lmcache_core.jobs.fault_log import FaultLog
from lmcache_core.jobs.inbox import Inbox
from lmcache_core.model.errors import ProtocolError
from lmcache_core.server.engine_socket import EngineSocket, Message
from lmcache_core.server.pools import AffinePool, Pool
from lmcache_core.server.router_call import RouterCall
from lmcache_core.server.timers import Timer, Timers
from lmcache_core.wire.codec import (
    PLAIN_READERS,
    Frame,
    FrameReader,
    OpenedFrame,
    OperationCodec,
    OperationTable,
    encode_result,
    refusal,
)

logger = logging.getLogger(__name__)

SMALL_BYTES: Final = 8192
"""An ordered request of which so much (some 2,000 tokens) is to be read is answered on the router thread if nothing is
before it."""
_FOR_EVER: Final = -1
LAST_CALL_SECONDS: Final = 2.0
"""How long a router that was told to stop goes on answering engines that go on asking."""
QUIET_MILLISECONDS: Final = 10
"""Nothing was asked for so long: a moment to close the port in, since engines ask in bursts."""

Payload = Sequence[Frame | OpenedFrame]


class _Reply(NamedTuple):
    call: RouterCall
    result: Sequence[Frame]


class _Route(NamedTuple):
    codec: OperationCodec
    handler: Handler


@dataclass(slots=True)
class RouterCounters:
    """Since the server started."""

    requests: int = 0
    refused: int = 0
    """Answered negatively without a handler's word: unknown, unreadable, failed or too many waiting."""
    dropped: int = 0
    """Not answered at all: no readable envelope, or a peer that is gone or does not read."""


class Router:
    """`run` is the thread's body.  `handlers` decide who answers what, `readers` how payloads of their types are read."""

    def __init__(
        self,
        handlers: Sequence[Handler],
        pooled: Pool,
        affine: AffinePool,
        max_frame_bytes: int,
        clock: Clock,
        readers: Mapping[Any, FrameReader] = PLAIN_READERS,
    ) -> None:
        self._table = OperationTable((handler.operation for handler in handlers), readers)
        self._handlers = {handler.operation.name: handler for handler in handlers}
        self._routes: dict[bytes, _Route] = {}
        """By operation frame, in the two forms that clients send."""
        for handler in handlers:
            for label in (handler.operation.wire_id, handler.operation.name):
                if label is not None:
                    [frame] = encode_result(label)
                    self._routes[bytes(frame)] = self._find_route(frame)
        self._pooled = pooled
        self._affine = affine
        self._clock = clock
        self._port = EngineSocket(max_frame_bytes)
        self._posted: Inbox[_Reply | Timer] = Inbox()
        self._timers = Timers()
        self._under_way: dict[bytes, int] = {}
        """Requests of each connection that its worker has not answered; touched by the router thread only."""
        self._order = itertools.count()
        self._stop = False
        self._closed = threading.Event()
        self._faults = FaultLog(logger, clock, "port=engine")
        self._answering = threading.Lock()
        self._counters = RouterCounters()

    @property
    def counters(self) -> RouterCounters:
        self._counters.dropped = self._port.dropped
        return self._counters

    def bind(self, host: str, port: int) -> str:
        """Open the port (0: any free one).  Returns the endpoint.  Raises ResourceError when it cannot be had."""
        return self._port.bind(host, port)

    def run(self) -> None:
        # One message for each zmq_poll: it costs as much as asking the socket whether there is another one, and half of
        # the exception that receiving without one takes.
        polled: list[Any] = [(self._port.socket, zmq.POLLIN), (self._posted.fileno(), select.POLLIN)]
        while not self._stop:
            self._turn(polled, self._milliseconds_to_timer())
        self._last_call(polled)

    def stop(self) -> None:
        """Any thread.  `run` ends soon: see `wait_closed`."""
        self._stop = True
        self._posted.wake()

    def wait_closed(self, seconds: float) -> bool:
        """After `stop`, before anything that answers requests is stopped: block until everything that has arrived is
        answered and the port is closed.  False when that takes longer.  Any thread but the router's."""
        return self._closed.wait(seconds)

    def close(self) -> None:
        """After `run` has ended, or where it never began: give back what is left."""
        self._port.close()
        self._posted.close()

    # --- for calls, on any thread

    def is_first(self, call: RouterCall) -> bool:
        with self._answering:
            first, call.is_answered = not call.is_answered, True
        return first

    def post(self, call: RouterCall, result: Sequence[Frame]) -> None:
        self._posted.post(_Reply(call, result))

    def is_in_the_way(self, call: RouterCall) -> bool:
        if not call.may_wait:
            return True
        return (self._affine.waiting_for(call.connection) if call.under_way else self._pooled.waiting) > 0

    def arm(self, call: RouterCall, seconds: float, fallback: Any) -> None:
        self._posted.post(Timer(self._clock.monotonic() + seconds, next(self._order), call, fallback))

    # --- on the router's thread

    def _turn(self, polled: list[Any], milliseconds: int) -> bool:
        """Wait for so long, and do what there is to do.  False when that was nothing."""
        readable = zmq.zmq_poll(polled, milliseconds)
        for source, _ in readable:
            if source is self._port.socket:
                self._receive()
            else:
                self._posted.clear_wakes()
                self._take_posted()
        if len(self._timers):
            self._timers.fire(self._clock.monotonic())
        return bool(readable)

    def _last_call(self, polled: list[Any]) -> None:
        """An engine waits minutes for an answer that died with its server, and then dies too.  So everything that has
        arrived is answered, and the port closed in a quiet moment, at once: what engines send from then on waits at
        their side for the next server."""
        deadline = self._clock.monotonic() + LAST_CALL_SECONDS
        self._timers.fire(math.inf)
        while (self._turn(polled, QUIET_MILLISECONDS) or self._under_way) and self._clock.monotonic() < deadline:
            self._timers.fire(math.inf)
        self._port.close()
        self._closed.set()

    def _receive(self) -> None:
        message = self._port.receive()
        if message is None:
            return
        self._counters.requests += 1
        route = self._routes.get(message.envelope[2])
        if route is None:
            try:
                route = self._find_route(message.envelope[2])
            except ProtocolError as error:
                self._refuse(message, refusal(message.envelope[2]), str(error))
                return
        self._dispatch(route, message)

    def _find_route(self, frame: Frame) -> _Route:
        codec = self._table.find(frame)
        return _Route(codec, self._handlers[codec.operation.name])

    def _dispatch(self, route: _Route, message: Message) -> None:
        call = RouterCall(self, message.envelope)
        payload: Payload = message.payload
        mode = route.handler.mode
        if mode is HandlerMode.POOLED:
            call.may_wait = True
            accepted = self._pooled.submit(lambda: self._answer_elsewhere(call, route, payload))
        elif mode is HandlerMode.AFFINE:
            accepted = self._give_to_worker(call, route, payload)
        else:
            payload, unread_bytes = route.codec.open_payload(message.payload)
            if mode is HandlerMode.INLINE or (
                unread_bytes <= SMALL_BYTES and message.envelope[0] not in self._under_way
            ):
                result = self._answer(call, route, payload)
                if isinstance(result, tuple) and self.is_first(call):
                    self._port.send(call.envelope, result)
                if result is not ELSEWHERE:
                    return
            accepted = self._give_to_worker(call, route, payload)
        if not accepted:
            name = route.codec.operation.name
            self._refuse(message, route.codec.negative, f"{name}: too many requests are waiting")

    def _give_to_worker(self, call: RouterCall, route: _Route, payload: Payload) -> bool:
        call.may_wait = call.under_way = True
        accepted = self._affine.submit(call.connection, lambda: self._answer_elsewhere(call, route, payload))
        if accepted:
            self._under_way[call.connection] = self._under_way.get(call.connection, 0) + 1
        return accepted

    def _refuse(self, message: Message, negative: tuple[Frame, ...], reason: str) -> None:
        self._counters.refused += 1
        self._faults.error(f"request refused reason={reason} connection={message.envelope[0].hex()}")
        self._port.send(message.envelope, negative)

    def _take_posted(self) -> None:
        while (item := self._posted.take()) is not None:
            if isinstance(item, Timer):
                self._timers.add(item)
                continue
            self._port.send(item.call.envelope, item.result)
            if item.call.under_way:
                self._ended(item.call.connection)

    def _ended(self, connection: bytes) -> None:
        left = self._under_way[connection] - 1
        if left:
            self._under_way[connection] = left
        else:
            del self._under_way[connection]

    def _milliseconds_to_timer(self) -> int:
        deadline = self._timers.next_deadline
        return _FOR_EVER if deadline is None else max(0, int((deadline - self._clock.monotonic()) * 1000) + 1)

    # --- on any thread

    def _answer_elsewhere(self, call: RouterCall, route: _Route, payload: Payload) -> None:
        result = self._answer(call, route, payload)
        if isinstance(result, tuple):
            call.answer(result)

    def _answer(self, call: RouterCall, route: _Route, payload: Payload) -> tuple[Frame, ...] | Any:
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
        self._counters.refused += 1
        return route.codec.negative
