"""Who answers which request, and what becomes of the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lmcache_client.codec import Frame, FrameReader, OpenedFrame, OperationCodec, OperationTable, encode_result
from lmcache_client.errors import ProtocolError
from lmcache_core.contracts.operation import DEFERRED, ELSEWHERE, Handler
from lmcache_core.jobs.fault_log import FaultLog
from lmcache_core.server.router_call import ERROR, REFUSED, RouterCall

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
        self._by_frame: dict[bytes, Route] = {}
        """In the two forms that clients send."""
        for handler in handlers:
            for label in (handler.operation.wire_id, handler.operation.name):
                if label is not None:
                    [frame] = encode_result(label)
                    self._by_frame[bytes(frame)] = self._read(frame)

    @property
    def names(self) -> list[str]:
        """Of all operations that somebody handles."""
        return list(self._handlers)

    def find(self, frame: bytes) -> Route:
        """The operation that a frame names.  Raises ProtocolError when nobody handles it."""
        return self._by_frame.get(frame) or self._read(frame)

    def answer(self, call: RouterCall, route: Route, payload: Payload) -> tuple[Frame, ...] | Any:
        """The result frames of the handler, or of the operation's negative value; or DEFERRED or ELSEWHERE."""
        name = route.codec.operation.name
        try:
            result = route.handler.function(call, *route.codec.decode_payload(payload))
            if result is DEFERRED:
                if not call.is_deferred:
                    raise TypeError("a handler returned DEFERRED and had not called `defer`")
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

    def _read(self, frame: Frame) -> Route:
        codec = self._table.find(frame)
        return Route(codec, self._handlers[codec.operation.name])
