"""Frames of the engine protocol to values and back.

A request is `[uid] [operation] [payload]...`, an answer `[uid] [operation] [result]?`; every frame but the uid is one
msgpack value.  Whatever a peer sends, reading it gives a value or a ProtocolError.  Nothing here keeps state between
two calls, so all of it may be used from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec

from lmcache_core.contracts.operation import Operation
from lmcache_core.model.errors import ProtocolError
from lmcache_core.wire.operations import KNOWN_REQUESTS

Frame = bytes | memoryview
NO_RESULT: Final[tuple[Frame, ...]] = ()

_encode = msgspec.msgpack.Encoder().encode
_decode_operation_frame = msgspec.msgpack.Decoder(int | str).decode
_decode_bool_or_int = msgspec.msgpack.Decoder(bool | int).decode


def _decoder(kind: Any) -> Callable[[Frame], Any]:
    # Peers of both sides have always taken True for 1 and the reverse where that is the whole frame, never in a field.
    if kind is bool or kind is int:
        return lambda frame: kind(_decode_bool_or_int(frame))
    return msgspec.msgpack.Decoder(kind).decode


def _read(decode: Callable[[Frame], Any], frame: Frame, what: str) -> Any:
    try:
        return decode(frame)
    except (ValueError, RecursionError) as error:  # msgspec's errors and UnicodeDecodeError are ValueErrors
        raise ProtocolError(f"{what}: {error}") from None


def decode_operation_frame(frame: Frame) -> int | str:
    """The number or name in an operation frame, known or not.  Raises ProtocolError for anything else."""
    value: int | str = _read(_decode_operation_frame, frame, "operation frame")
    return value


def encode_result(result: Any) -> tuple[Frame, ...]:
    """No frame for None, else one.  A msgspec.Raw is a result that is encoded already and is passed on without a copy.

    Raises TypeError or OverflowError for a value that msgpack cannot hold, which is a fault of the handler."""
    if result is None:
        return NO_RESULT
    if isinstance(result, msgspec.Raw):
        return (memoryview(result),)
    return (_encode(result),)


class OperationCodec:
    """The frames of one request type, with its decoders built once."""

    __slots__ = ("_payload_decoders", "_result_decoder", "frame", "negative", "operation")

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self.frame: bytes = _encode(operation.name if operation.wire_id is None else operation.wire_id)
        """The operation frame of a request."""
        self.negative = encode_result(operation.negative)
        """The result frames of the negative answer."""
        self._payload_decoders = tuple(_decoder(kind) for kind in operation.payload)
        self._result_decoder = None if operation.result is None else _decoder(operation.result)

    def decode_payload(self, frames: Sequence[Frame]) -> tuple[Any, ...]:
        """The arguments of a request.  Views in them (memoryview, msgspec.Raw) lie in the given frames.

        Raises ProtocolError, which names the operation and the frame, when a frame is missing, too many or not of its
        type."""
        name = self.operation.name
        if len(frames) != len(self._payload_decoders):
            raise ProtocolError(f"{name}: {len(frames)} payload frames, where {len(self._payload_decoders)} belong")
        return tuple(
            _read(decode, frame, f"{name}: payload frame {number}")
            for number, (decode, frame) in enumerate(zip(self._payload_decoders, frames, strict=True))
        )

    def encode_payload(self, payload: Sequence[Any]) -> list[bytes]:
        """The payload frames of a request.  Raises ProtocolError when the number of arguments is not the operation's."""
        if len(payload) != len(self._payload_decoders):
            name = self.operation.name
            raise ProtocolError(f"{name} takes {len(self._payload_decoders)} arguments, {len(payload)} were given")
        return [_encode(value) for value in payload]

    def decode_result(self, frames: Sequence[Frame]) -> Any:
        """What an answer says; None without a frame.  Frames after the first are not looked at."""
        if not frames or self._result_decoder is None:
            return None
        return _read(self._result_decoder, frames[0], f"{self.operation.name}: result")


class OperationTable:
    """The request types of one server, by the number and by the name that clients may use for each."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        """Raises ValueError when two operations share a name or a number."""
        self._codecs: dict[int | str, OperationCodec] = {}
        for operation in operations:
            codec = OperationCodec(operation)
            for label in (operation.name, operation.wire_id):
                if label is None:
                    continue
                if (other := self._codecs.setdefault(label, codec)) is not codec:
                    raise ValueError(
                        f"operations '{other.operation.name}' and '{operation.name}' are both called {label!r} on the wire"
                    )

    def find(self, frame: Frame) -> OperationCodec:
        """The operation that a frame names.  Raises ProtocolError when it names none of this table."""
        label = decode_operation_frame(frame)
        try:
            return self._codecs[label]
        except KeyError:
            shown = f"'{label[:60]}'" if isinstance(label, str) else str(label)
            raise ProtocolError(f"operation frame: this server has no operation {shown}") from None


_REFUSALS = MappingProxyType(
    {
        label: encode_result(request.negative)
        for request in KNOWN_REQUESTS
        for label in (request.name, request.wire_id)
        if label is not None
    }
)


def refusal(frame: Frame) -> tuple[Frame, ...]:
    """The result frames that answer an operation which nobody handles: its negative value where the protocol knows
    it, else none.  Never raises: also a frame that is no operation is answered, so that nobody waits for it."""
    try:
        return _REFUSALS.get(decode_operation_frame(frame), NO_RESULT)
    except ProtocolError:
        return NO_RESULT
