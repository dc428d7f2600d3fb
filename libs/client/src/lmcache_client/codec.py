"""Frames of the engine protocol to values and back.

A request is `[uid] [operation] [payload]...`, an answer `[uid] [operation] [result]?`; every frame but the uid is one
msgpack value.  Whatever a peer sends, reading it gives a value or a ProtocolError.  Nothing here keeps state between
two calls, so all of it may be used from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Protocol

import msgspec

from lmcache_client.engine_key import EngineKey, TokenSequence, read_key
from lmcache_client.errors import ProtocolError
from lmcache_client.operations import KNOWN_REQUESTS, Operation

Frame = bytes | memoryview
_UNREADABLE: Final = (ProtocolError, ValueError, RecursionError)
"""What reading a frame can raise: msgspec's errors and UnicodeDecodeError are ValueErrors."""
NO_RESULT: Final[tuple[Frame, ...]] = ()


def _encode_own(value: Any) -> Any:
    if isinstance(value, TokenSequence):
        return value.array()
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


_encode = msgspec.msgpack.Encoder(enc_hook=_encode_own).encode
_decode_operation_frame = msgspec.msgpack.Decoder(int | str).decode
_decode_bool_or_int = msgspec.msgpack.Decoder(bool | int).decode


class OpenedFrame(Protocol):
    """A frame that was looked at and not read yet."""

    @property
    def unread_bytes(self) -> int:
        """How much reading it takes."""

    def read(self) -> Any:
        """The value, the same each time.  Raises ProtocolError, ValueError or RecursionError.  Any thread."""


class FrameReader(Protocol):
    """Reads frames of one payload type that msgspec alone cannot read.  Any thread."""

    def open(self, frame: Frame) -> OpenedFrame:
        """Take microseconds to see how much is to be read.  Never raises."""


@dataclass(frozen=True, slots=True)
class _PlainKey:
    frame: Frame

    @property
    def unread_bytes(self) -> int:
        return len(self.frame)

    def read(self) -> EngineKey:
        return read_key(self.frame)


class PlainKeyReader:
    """Reads every key as a whole."""

    def open(self, frame: Frame) -> OpenedFrame:
        return _PlainKey(frame)


PLAIN_READERS: Final[Mapping[Any, FrameReader]] = MappingProxyType({EngineKey: PlainKeyReader()})
"""Without a memory of what came before."""


def _reading(reader: FrameReader) -> Callable[[Frame], Any]:
    return lambda frame: reader.open(frame).read()


def _decoder(kind: Any) -> Callable[[Any], Any]:
    # Peers of both sides have always taken True for 1 and the reverse where that is the whole frame, never in a field.
    if kind is bool or kind is int:
        return lambda frame: kind(_decode_bool_or_int(frame))
    return msgspec.msgpack.Decoder(kind).decode


def _read(decode: Callable[[Frame], Any], frame: Frame, what: str) -> Any:
    try:
        return decode(frame)
    except _UNREADABLE as error:
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

    __slots__ = ("_has_reader", "_payload_decoders", "_readers", "_result_decoder", "frame", "negative", "operation")

    def __init__(self, operation: Operation, readers: Mapping[Any, FrameReader] = PLAIN_READERS) -> None:
        self.operation = operation
        self.frame: bytes = _encode(operation.name if operation.wire_id is None else operation.wire_id)
        """The operation frame of a request."""
        self.negative = encode_result(operation.negative)
        """The result frames of the negative answer."""
        self._readers = tuple(readers.get(kind) for kind in operation.payload)
        self._has_reader = any(self._readers)
        self._payload_decoders = tuple(
            _decoder(kind) if reader is None else _reading(reader)
            for kind, reader in zip(operation.payload, self._readers, strict=True)
        )
        self._result_decoder = None if operation.result is None else _decoder(operation.result)

    def open_payload(self, frames: Sequence[Frame]) -> tuple[Sequence[Frame | OpenedFrame], int]:
        """Look at the frames, which takes microseconds.  Returns them, opened where their type has a reader, and how many
        bytes `decode_payload` will have to read.  Never raises."""
        if not self._has_reader:
            return frames, sum(map(len, frames))
        if len(frames) != len(self._readers):
            return frames, 0
        opened = [
            frame if reader is None else reader.open(frame) for frame, reader in zip(frames, self._readers, strict=True)
        ]
        return opened, sum(
            len(frame) if isinstance(frame, bytes | bytearray | memoryview) else frame.unread_bytes for frame in opened
        )

    def decode_payload(self, frames: Sequence[Frame | OpenedFrame]) -> tuple[Any, ...]:
        """The arguments of a request.  Views in them (memoryview, msgspec.Raw, tokens) lie in the given frames.

        Raises ProtocolError, which names the operation and the frame, when a frame is missing, too many or not of its
        type."""
        decoders = self._payload_decoders
        if len(frames) != len(decoders):
            raise ProtocolError(f"{self.operation.name}: {len(frames)} payload frames, where {len(decoders)} belong")
        if not decoders:
            return ()
        values: list[Any] = []
        try:
            for decode, frame in zip(decoders, frames, strict=True):
                values.append(decode(frame) if isinstance(frame, bytes | bytearray | memoryview) else frame.read())
        except _UNREADABLE as error:
            raise ProtocolError(f"{self.operation.name}: payload frame {len(values)}: {error}") from None
        return tuple(values)

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

    def __init__(self, operations: Iterable[Operation], readers: Mapping[Any, FrameReader] = PLAIN_READERS) -> None:
        """Raises ValueError when two operations share a name or a number."""
        self._codecs: dict[int | str, OperationCodec] = {}
        for operation in operations:
            codec = OperationCodec(operation, readers)
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
    """The result frames that answer an operation without a handler: its negative value where the protocol knows
    it, else none.  Never raises: also a frame that is not an operation is answered, so that no client waits for it."""
    try:
        return _REFUSALS.get(decode_operation_frame(frame), NO_RESULT)
    except ProtocolError:
        return NO_RESULT
