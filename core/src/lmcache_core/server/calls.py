"""Requests as they are answered: which handler an operation has, a call until its answer, and deadlines of deferred calls."""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lmcache_client.codec import (
    Frame,
    FrameReader,
    OpenedFrame,
    OperationCodec,
    OperationTable,
    decode_operation_frame,
    encode_result,
)
from lmcache_client.errors import ProtocolError
from lmcache_client.operations import KNOWN_REQUESTS
from lmcache_core.contracts.operation import DEFERRED, ELSEWHERE, Handler
from lmcache_core.jobs.fault_log import FaultLog
from lmcache_core.server.streams import AnswerStream

if TYPE_CHECKING:
    from lmcache_core.server.engine_socket import Envelope
    from lmcache_core.server.router import Router

logger = logging.getLogger(__name__)


OK: Final = "ok"
ERROR: Final = "error"
"""Its handler failed."""
REFUSED: Final = "refused"
"""Answered negatively without a handler's word, or because the handler found that it breaks the protocol."""


class RouterCall:
    """Implements `contracts.operation.Call`."""

    __slots__ = (
        "_router",
        "connection",
        "envelope",
        "is_answered",
        "is_deferred",
        "may_wait",
        "operation",
        "outcome",
        "started",
        "under_way",
    )

    def __init__(self, router: Router, envelope: Envelope, operation: str, started: float) -> None:
        self._router = router
        self.connection = envelope[0]
        self.envelope = envelope
        self.operation = operation
        self.started = started
        """When it was received."""
        self.outcome = OK
        """What its answer will count as."""
        self.is_answered = False
        self.is_deferred = False
        self.may_wait = False
        self.under_way = False
        """It is counted as given to its connection's worker."""

    @property
    def is_congested(self) -> bool:
        return self._router.is_congested(self.connection)

    @property
    def others_wait(self) -> bool:
        return self._router.others_wait_for(self)

    def defer(self, seconds: float, fallback: Any) -> None:
        if not 0 <= seconds < math.inf:
            raise ValueError(f"a call cannot be deferred by {seconds} seconds")
        self._router.arm(self, seconds, encode_result(fallback))
        self.is_deferred = True

    def reply(self, result: Any) -> bool:
        return self.answer(encode_result(result))

    def stream(self, wake: Callable[[], None]) -> AnswerStream:
        stream = self._router.open_stream(self, wake)
        self.is_deferred = True
        return stream

    def answer(self, result: tuple[Frame, ...]) -> bool:
        """Send these result frames.  False when the call had been answered."""
        first = self._router.is_first(self)
        if first:
            self._router.post(self, result)
        return first


Payload = Sequence[Frame | OpenedFrame]


class Route(NamedTuple):
    codec: OperationCodec
    handler: Handler


class Routes:
    """`find` belongs to the router's thread, `answer` to any."""

    def __init__(self, handlers: Sequence[Handler], readers: Mapping[Any, FrameReader], faults: FaultLog) -> None:
        """Raises ValueError when two handlers share an operation."""
        self._faults = faults
        self._table = OperationTable((handler.operation for handler in handlers), readers)
        self._handlers = {handler.operation.name: handler for handler in handlers}
        self.names = [*self._handlers]
        """Of all operations that a module handles."""
        self.known: dict[bytes, Route] = {}
        """By frame, in the two forms that clients send; `find` reads any other frame."""
        for handler in handlers:
            for label in (handler.operation.wire_id, handler.operation.name):
                if label is not None:
                    [frame] = encode_result(label)
                    self.known[bytes(frame)] = self.find(frame)

    def find(self, frame: Frame) -> Route:
        """The operation that a frame names.  Raises ProtocolError when no module handles it."""
        codec = self._table.find(frame)
        return Route(codec, self._handlers[codec.operation.name])

    def answer(self, call: RouterCall, route: Route, payload: Payload) -> tuple[Frame, ...] | Any:
        """The result frames of the handler, or of the operation's negative value; or DEFERRED or ELSEWHERE."""
        name = route.codec.operation.name
        try:
            result = route.handler.function(call, *route.codec.decode_payload(payload))
            if result is DEFERRED:
                if not call.is_deferred:
                    raise TypeError("a handler returned DEFERRED and had called neither `defer` nor `stream`")
                return result
            if result is ELSEWHERE:
                if call.may_wait:
                    raise TypeError("a handler returned ELSEWHERE where it may take its time")
                return result
            return encode_result(result)
        except ProtocolError as error:
            call.outcome = REFUSED
            self._faults.error(f"request refused reason={error} connection={call.connection.hex()}")
        except BaseException:  # noqa: BLE001 - a plugin boundary: handlers come from request modules, and may call sys.exit
            call.outcome = ERROR
            self._faults.exception(f"request failed operation={name} connection={call.connection.hex()}")
        return route.codec.negative


TIMERS_SWEPT: Final = 256
"""Timers beyond which those of answered calls are looked for."""


class Timer(NamedTuple):
    """Ordered by deadline, then by `order`, which no two share."""

    deadline: float
    order: int
    call: RouterCall
    fallback: tuple[Frame, ...]


class Timers:
    """Not synchronised."""

    def __init__(self) -> None:
        self._heap: list[Timer] = []
        self._swept = TIMERS_SWEPT
        self.next_deadline = math.inf
        """Infinite without a timer."""

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, timer: Timer) -> None:
        heapq.heappush(self._heap, timer)
        if len(self._heap) >= self._swept:
            # Calls are mostly answered long before their time; what is left of them must not pile up.
            self._heap = [waiting for waiting in self._heap if not waiting.call.is_answered]
            heapq.heapify(self._heap)
            self._swept = max(TIMERS_SWEPT, 2 * len(self._heap))
        self.next_deadline = self._heap[0].deadline if self._heap else math.inf

    def fire(self, now: float) -> None:
        """Answer what is due with its fallback."""
        while self._heap and self._heap[0].deadline <= now:
            timer = heapq.heappop(self._heap)
            timer.call.answer(timer.fallback)
        self.next_deadline = self._heap[0].deadline if self._heap else math.inf


_NAMES: Final[Mapping[int | str, str]] = MappingProxyType(
    {label: known.name for known in KNOWN_REQUESTS for label in (known.name, known.wire_id) if label is not None}
)


class UnhandledRequests:
    """Written by the router's thread, read by any.  `remedy_of` says what would answer an operation; empty for no remedy."""

    def __init__(self, remedy_of: Callable[[str], str] = lambda operation: "") -> None:
        self._remedy_of = remedy_of
        self._counts: dict[str, int] = {}

    def note(self, frame: Frame) -> None:
        """No handler answers what this frame names.  The first one of each operation that has a remedy is a warning."""
        try:
            name = _NAMES.get(decode_operation_frame(frame))
        except ProtocolError:
            return
        if name is None:
            return  # not of this protocol
        self._counts[name] = self._counts.get(name, 0) + 1
        if self._counts[name] == 1 and (remedy := self._remedy_of(name)):
            logger.warning(
                "an engine asks for what this server cannot do, and runs uncached operation=%s remedy=%s", name, remedy
            )

    def status(self) -> dict[str, dict[str, object]]:
        """How often each was asked for, and what would help."""
        return {name: {"count": count, "remedy": self._remedy_of(name)} for name, count in list(self._counts.items())}
