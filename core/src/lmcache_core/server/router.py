"""The engine port: one ROUTER socket, one thread that owns it.

Every request with a readable envelope is answered exactly once: with its handler's result, or with its operation's
negative value when nothing handles it, its payload cannot be read, its handler raises, or too much is waiting.  Anything
else is counted and dropped.  Receiving and sending never block; answers wait for an engine that reads slowly.
"""

from __future__ import annotations

import itertools
import logging
import math
import select
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import zmq

from lmcache_client.codec import PLAIN_READERS, Frame, FrameReader, refusal
from lmcache_client.errors import ProtocolError
from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.counts import RouterCounters
from lmcache_core.contracts.events import Publisher, RequestAnswered
from lmcache_core.contracts.operation import ELSEWHERE, Handler, HandlerMode
from lmcache_core.contracts.samples import Durations, Histogram
from lmcache_core.jobs.fault_log import FaultLog
from lmcache_core.jobs.queues import Inbox
from lmcache_core.server.calls import (
    ERROR,
    OK,
    REFUSED,
    Payload,
    Route,
    RouterCall,
    Routes,
    Timer,
    Timers,
    UnhandledRequests,
)
from lmcache_core.server.engine_socket import EngineSocket, Message
from lmcache_core.server.streams import CANCEL, CONTROL, GRANT, STREAMS_MAX, AnswerStream
from lmcache_core.server.threads import LAST_CALL_SECONDS, QUEUE_MAX, UNREFUSED_MAX, Pool

logger = logging.getLogger(__name__)

SMALL_BYTES: Final = 8192
"""An ordered request of which so much (some 2,000 tokens) is to be read is answered on the router thread if nothing is
before it."""
CROWDED_SECONDS: Final = 0.005
"""Another connection that asked within this time may ask again while the router's thread is held."""
UNKNOWN: Final = "unknown"
"""The name in counts of all operations that no module handles."""
_FOR_EVER: Final = -1
_NAP_SECONDS_MAX: Final = 3600.0
"""Longest wait for a timer at a time; a poll does not take a number of any size."""
QUIET_MILLISECONDS: Final = 10
"""Silence after which it is a good moment to close the port: engines ask in bursts."""


class _Reply(NamedTuple):
    call: RouterCall
    result: Sequence[Frame]


class Router:
    """`run` is the thread's body.  `handlers` decide who answers what, `readers` how payloads of their types are read.  The
    router owns the port from here on."""

    def __init__(
        self,
        handlers: Sequence[Handler],
        pooled: Pool,
        affine: Pool,
        port: EngineSocket,
        clock: Clock,
        readers: Mapping[Any, FrameReader] = PLAIN_READERS,
        events: Publisher | None = None,
        unhandled: UnhandledRequests | None = None,
    ) -> None:
        self._faults = FaultLog(logger, clock, "port=engine")
        self._routes = Routes(handlers, readers, self._faults)
        self._pooled = pooled
        self._affine = affine
        self._clock = clock
        self._events = events
        self.unhandled = unhandled or UnhandledRequests()
        """What engines asked for that no module handles."""
        self._port = port
        self.bind, self.is_connected = port.bind, port.is_connected
        self._waiting = port.waiting
        self._posted: Inbox[_Reply | Timer | AnswerStream] = Inbox()
        self._timers = Timers()
        self._under_way: dict[bytes, int] = {}
        """Requests of each connection that its worker has not answered; touched by the router thread only."""
        self._given_away: dict[RouterCall, float] = {}
        """Requests that other threads have not answered, those under way among them, and when they came, oldest first."""
        self._streams: dict[tuple[bytes, bytes], AnswerStream] = {}
        """By connection and uid; changed by the router thread only."""
        self._latest, self._latest_at = b"", -math.inf
        """Who asked last, and when; touched by the router thread only."""
        self._others_at = -math.inf
        """When another connection than that asked last."""
        self._order = itertools.count()
        self._stop = False
        self._closed = threading.Event()
        self._answering = threading.Lock()
        self._times = {
            (name, outcome): Durations() for name in (*self._routes.names, UNKNOWN) for outcome in (OK, ERROR, REFUSED)
        }  # guarded by `_answering`
        self._requests = 0

    @property
    def counters(self) -> RouterCounters:
        with self._answering:
            refused = sum(times.total for (_, outcome), times in self._times.items() if outcome != OK)
        waiting = self._waiting
        return RouterCounters(
            self._requests, refused, self._port.dropped, len(waiting), waiting.size_bytes, waiting.closed
        )

    def answered(self) -> dict[tuple[str, str], Histogram]:
        """How long answered requests took, from their arrival, by operation and outcome (`ok`, `error` or `refused`).  Any
        thread."""
        with self._answering:
            return {key: times.histogram() for key, times in self._times.items() if times.total}

    @property
    def oldest_seconds(self) -> float:
        """How long the oldest request has been with another thread, or waited for one; 0 where there is none.  Any
        thread."""
        since = list(self._given_away.values())
        return max(0.0, self._clock.monotonic() - since[0]) if since else 0.0

    def run(self) -> None:
        # One message for each zmq_poll: it costs as much as asking the socket whether there is another one, and half of
        # the exception that receiving without one takes.
        polled: list[Any] = [(self._port.socket, zmq.POLLIN), (self._posted.fileno(), select.POLLIN)]
        self._posted.wake()  # for what is left there when this thread is started again after a failure
        while not self._stop:
            deadline = min(self._timers.next_deadline, self._waiting.retry_at)
            self._poll(polled, _FOR_EVER if deadline == math.inf else self._milliseconds_to(deadline))
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
        """True for one answer of each call."""
        with self._answering:
            if call.is_answered:
                return False
            call.is_answered = True
            seconds = self._clock.monotonic() - call.started
            self._times[call.operation, call.outcome].count(seconds)
        if self._events is not None and self._events.wants(RequestAnswered):
            self._events.publish(RequestAnswered(call.operation, call.outcome, seconds))
        return True

    def post(self, call: RouterCall, result: Sequence[Frame]) -> None:
        """Send these result frames on the router's thread."""
        self._posted.post(_Reply(call, result))

    def open_stream(self, call: RouterCall, wake: Callable[[], None]) -> AnswerStream:
        """As `contracts.operation.Call.stream`."""
        if len(self._streams) >= STREAMS_MAX:
            raise ProtocolError(f"{STREAMS_MAX} streams are open already")
        if not self.is_first(call):
            raise ProtocolError("the call was answered before its stream was opened")
        stream = AnswerStream(self, call, wake)
        self.post_stream(stream)
        return stream

    def post_stream(self, stream: AnswerStream) -> None:
        """Register the stream, or remove it when it has ended.  Any thread."""
        self._posted.post(stream)

    def others_wait_for(self, call: RouterCall) -> bool:
        """As `contracts.operation.Call.others_wait`."""
        if not call.may_wait:
            return call.started - self._others_at < CROWDED_SECONDS
        return (self._affine if call.under_way else self._pooled).waiting_for(call.connection) > 0

    def is_congested(self, connection: bytes) -> bool:
        return connection in self._waiting.congested

    def arm(self, call: RouterCall, seconds: float, fallback: tuple[Frame, ...]) -> None:
        """Answer with these result frames after this many seconds."""
        self._posted.post(Timer(self._clock.monotonic() + seconds, next(self._order), call, fallback))

    # --- on the router's thread

    def _poll(self, polled: list[Any], milliseconds: int) -> bool:
        """Wait for at most `milliseconds`, receive what has arrived, and answer what is due.  False when nothing had
        arrived."""
        readable = zmq.zmq_poll(polled, milliseconds)
        for source, _ in readable:
            if source is self._port.socket:
                self._receive()
            else:
                self._posted.clear_wakes()
                self._take_posted()
        if self._timers.next_deadline < math.inf:
            self._timers.fire(self._clock.monotonic())
        if self._waiting.retry_at < math.inf and self._waiting.retry_at <= self._clock.monotonic():
            self._waiting.retry()
        return bool(readable)

    def _last_call(self, polled: list[Any]) -> None:
        """An engine waits minutes for an answer that died with its server, and then dies too.  So everything that has
        arrived is answered, and the port closed in a quiet moment, at once: what engines send from then on waits at
        their side for the next server."""
        deadline = self._clock.monotonic() + LAST_CALL_SECONDS
        self._timers.fire(math.inf)
        for stream in list(self._streams.values()):
            stream.end()
        while (
            self._poll(polled, QUIET_MILLISECONDS) or self._given_away or len(self._waiting)
        ) and self._clock.monotonic() < deadline:
            self._timers.fire(math.inf)
        self._port.close()
        self._closed.set()

    def _receive(self) -> None:
        message = self._port.receive()
        if message is None:
            return
        operation = message.envelope[2]
        if operation == CONTROL and self._is_control(message):
            return
        self._requests += 1
        try:
            route = self._routes.known.get(operation) or self._routes.find(operation)
        except ProtocolError as error:
            with self._answering:
                self._times[UNKNOWN, REFUSED].count(0.0)
            self.unhandled.note(operation)
            self._refuse(message, refusal(operation), str(error))
            return
        call = RouterCall(self, message.envelope, route.codec.operation.name, self._clock.monotonic())
        if call.connection != self._latest:
            self._latest, self._others_at = call.connection, self._latest_at
        self._latest_at = call.started
        try:
            if not self._dispatch(call, route, message.payload):
                call.outcome = REFUSED
                if self.is_first(call):
                    self._refuse(
                        message,
                        route.codec.negative,
                        f"{call.operation}: too many requests or unread answers are waiting",
                    )
        except BaseException:
            call.outcome = ERROR
            if self.is_first(call):
                self._refuse(message, route.codec.negative, "the router's thread failed")
            raise

    def _is_control(self, message: Message) -> bool:
        """Is it about a stream?  Late words about one that has ended are ignored."""
        word = bytes(message.payload[0]) if len(message.payload) == 1 else b""
        stream = self._streams.get(message.envelope[:2])
        if stream is None:
            return word in (GRANT, CANCEL)
        stream.control(word)
        if stream.is_ended:
            del self._streams[message.envelope[:2]]
        return True

    def _take_stream(self, stream: AnswerStream) -> None:
        """Register a new stream, or remove one that its handler has ended."""
        call = stream.call
        name = call.envelope[:2]
        if not stream.is_ended:
            if self._given_away.pop(call, None) is not None and call.under_way:
                self._ended(call.connection)
                call.under_way = False
            if (before := self._streams.get(name)) is not None:
                before.control(CANCEL)
            self._streams[name] = stream
        elif self._streams.get(name) is stream:
            del self._streams[name]
            if self.is_connected(call.connection):
                self._port.send(call.envelope, ())

    def _dispatch(self, call: RouterCall, route: Route, frames: Sequence[Frame]) -> bool:
        """False when the request is for a thread that too many wait for, or of a connection that many answers wait for."""
        if route.handler.may_be_refused and call.connection in self._waiting.congested:
            return False
        mode = route.handler.mode
        payload: Payload = frames
        if mode is HandlerMode.INLINE or mode is HandlerMode.ORDERED:
            payload, unread_bytes = route.codec.open_payload(frames)
            if mode is HandlerMode.INLINE or (unread_bytes <= SMALL_BYTES and call.connection not in self._under_way):
                result = self._routes.answer(call, route, payload)
                if isinstance(result, tuple) and self.is_first(call):
                    self._port.send(call.envelope, result)
                if result is not ELSEWHERE:
                    return True
        return self._give_away(call, route, payload)

    def _give_away(self, call: RouterCall, route: Route, payload: Payload) -> bool:
        connection, may_be_refused = call.connection, route.handler.may_be_refused
        is_pooled = route.handler.mode is HandlerMode.POOLED
        call.may_wait, call.under_way = True, not is_pooled

        def task() -> None:
            if may_be_refused and call.is_congested:  # since it was given to this thread
                call.outcome = REFUSED
                call.answer(route.codec.negative)
                return
            result = self._routes.answer(call, route, payload)
            if isinstance(result, tuple):
                call.answer(result)

        limit = QUEUE_MAX if may_be_refused else UNREFUSED_MAX
        if not (self._pooled if is_pooled else self._affine).submit(connection, task, limit):
            call.may_wait = call.under_way = False
            return False
        self._given_away[call] = self._clock.monotonic()
        if not is_pooled:
            self._under_way[connection] = self._under_way.get(connection, 0) + 1
        return True

    def _refuse(self, message: Message, negative: tuple[Frame, ...], reason: str) -> None:
        self._faults.error(f"request refused reason={reason} connection={message.envelope[0].hex()}")
        self._port.send(message.envelope, negative)

    def _take_posted(self) -> None:
        while (item := self._posted.take()) is not None:
            if isinstance(item, Timer):
                self._timers.add(item)
                continue
            if isinstance(item, AnswerStream):
                self._take_stream(item)
                continue
            self._given_away.pop(item.call, None)
            if item.call.under_way:
                self._ended(item.call.connection)
            self._port.send(item.call.envelope, item.result)

    def _ended(self, connection: bytes) -> None:
        left = self._under_way[connection] - 1
        if left:
            self._under_way[connection] = left
        else:
            del self._under_way[connection]

    def _milliseconds_to(self, deadline: float) -> int:
        return int(max(0.0, min(deadline - self._clock.monotonic(), _NAP_SECONDS_MAX)) * 1000) + 1
