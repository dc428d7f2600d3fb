"""Reads what stock engines send as `commit_store` data: the pickle of a list of CPU tensors.  EXECUTES NOTHING.

The opcodes are walked over a stack of inert values.  A global is looked up in a table of the few names that belong
there, and a call is accepted only where it has one of the known forms (`legacy_tensor`); neither imports or calls
anything.  All else is a ProtocolError.  Tensor bytes are slices of the input, and work and memory are bounded by the
number of tensors that the caller expects, not by anything that the input claims.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Final

from lmcache_client.errors import ProtocolError
from lmcache_core.server.legacy_tensor import PickledTensor, evaluate_call, find_global

_HEADS: Final = (b"\x80\x04", b"\x80\x05")
_STOP: Final = ord(".")
_LONG_MAX_BYTES: Final = 8
_OPCODES_PER_TENSOR: Final = 64
"""A pickler writes about 45 for a tensor."""


def read_tensors(data: bytes | memoryview, max_tensors: int) -> list[PickledTensor]:
    """The tensors in the pickle, in order, without a copy of their bytes.  They keep `data` alive.

    Raises ProtocolError for anything but a pickled list of at most `max_tensors` contiguous CPU tensors."""
    walker = _Walker(memoryview(data).cast("B"), max_tensors)
    try:
        return walker.walk()
    except ProtocolError as error:
        raise ProtocolError(f"commit_store data, before byte {walker.position}: {error}") from None


class _Walker:
    """One pass over one pickle.  The methods without an underscore are opcodes."""

    def __init__(self, data: memoryview, max_tensors: int) -> None:
        self.position = 2
        self._data = data
        self._frame_end = 0
        self._max_tensors = max_tensors
        self._tensors: list[PickledTensor] = []
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: list[Any] = []

    def walk(self) -> list[PickledTensor]:
        if bytes(self._data[:2]) not in _HEADS:
            raise ProtocolError("it does not start as a pickle of protocol 4 or 5")
        for _ in range(_OPCODES_PER_TENSOR * (self._max_tensors + 1)):
            start = self.position
            opcode = self._unsigned(1)
            if opcode == _STOP:
                return self._result()
            action = _OPCODES.get(opcode)
            if action is None:
                raise ProtocolError(f"opcode 0x{opcode:02x} does not occur in a list of tensors")
            action(self)
            if start < self._frame_end < self.position:
                raise ProtocolError("an opcode crosses the end of its frame")
        raise ProtocolError(f"it has more opcodes than {self._max_tensors} tensors take")

    def _result(self) -> list[PickledTensor]:
        if self.position != len(self._data):
            raise ProtocolError(f"{len(self._data) - self.position} bytes follow the end of the pickle")
        if not self._has_only_the_list():
            raise ProtocolError("it is not one list of tensors")
        return self._tensors

    def _has_only_the_list(self) -> bool:
        return not self._marks and len(self._stack) == 1 and self._stack[0] is self._tensors

    # The input and the stack

    def _take(self, size: int) -> memoryview:
        end = self.position + size
        if end > len(self._data):
            raise ProtocolError(f"{size} bytes are announced, {len(self._data) - self.position} are there")
        taken = self._data[self.position : end]
        self.position = end
        return taken

    def _unsigned(self, size: int) -> int:
        return int.from_bytes(self._take(size), "little")

    def _pop_from(self, start: int) -> list[Any]:
        popped = self._stack[start:]
        del self._stack[start:]
        return popped

    def _pop(self, count: int) -> list[Any]:
        start = len(self._stack) - count
        if start < (self._marks[-1] if self._marks else 0):
            raise ProtocolError("an opcode takes more values than there are")
        return self._pop_from(start)

    def _pop_to_mark(self) -> list[Any]:
        if not self._marks:
            raise ProtocolError("an opcode wants a mark that is not there")
        return self._pop_from(self._marks.pop())

    # Structure

    def frame(self) -> None:
        if self.position <= self._frame_end:
            raise ProtocolError("a frame starts inside of another one")
        length = self._unsigned(8)
        if length > len(self._data) - self.position:
            raise ProtocolError(f"a frame of {length} bytes goes past the end")
        self._frame_end = self.position + length

    def mark(self) -> None:
        self._marks.append(len(self._stack))

    def memoize(self) -> None:
        [value] = self._pop(1)
        self._memo.append(value)
        self._stack.append(value)

    def recall(self, size: int) -> None:
        index = self._unsigned(size)
        if index >= len(self._memo):
            raise ProtocolError(f"memo {index} is recalled, {len(self._memo)} are there")
        self._stack.append(self._memo[index])

    # Values

    def false(self) -> None:
        self._stack.append(False)

    def integer(self, size: int, *, signed: bool = False) -> None:
        self._stack.append(int.from_bytes(self._take(size), "little", signed=signed))

    def long_integer(self) -> None:
        size = self._unsigned(1)
        if size > _LONG_MAX_BYTES:
            raise ProtocolError(f"an integer has {size} bytes")
        self.integer(size, signed=True)

    def text(self) -> None:
        data = bytes(self._take(self._unsigned(1)))
        if not data.isascii():
            raise ProtocolError("a text is not ASCII")
        self._stack.append(data.decode("ascii"))

    def binary(self, size: int) -> None:
        self._stack.append(self._take(self._unsigned(size)))

    def tuple_of(self, count: int) -> None:
        self._stack.append(tuple(self._pop(count)))

    def tuple_from_mark(self) -> None:
        self._stack.append(tuple(self._pop_to_mark()))

    # Names, calls and the list

    def name(self) -> None:
        self._stack.append(find_global(*self._pop(2)))

    def call(self) -> None:
        self._stack.append(evaluate_call(*self._pop(2)))

    def new_list(self) -> None:
        if self._stack or self._memo:
            raise ProtocolError("there is more than one list")
        self._stack.append(self._tensors)

    def append(self) -> None:
        self._extend(self._pop(1))

    def appends(self) -> None:
        self._extend(self._pop_to_mark())

    def _extend(self, items: list[Any]) -> None:
        if not self._has_only_the_list():
            raise ProtocolError("something is appended to what is not the list")
        if not all(isinstance(item, PickledTensor) for item in items):
            raise ProtocolError("the list holds something that is not a tensor")
        if len(self._tensors) + len(items) > self._max_tensors:
            raise ProtocolError(f"there are more tensors than the {self._max_tensors} that belong here")
        self._tensors.extend(items)


_OPCODES: Final[MappingProxyType[int, Callable[[_Walker], None]]] = MappingProxyType(
    {
        0x95: _Walker.frame,
        ord("("): _Walker.mark,
        0x94: _Walker.memoize,
        ord("h"): lambda walker: walker.recall(1),
        ord("j"): lambda walker: walker.recall(4),
        0x89: _Walker.false,
        ord("K"): lambda walker: walker.integer(1),
        ord("M"): lambda walker: walker.integer(2),
        ord("J"): lambda walker: walker.integer(4, signed=True),
        0x8A: _Walker.long_integer,
        0x8C: _Walker.text,
        ord("C"): lambda walker: walker.binary(1),
        ord("B"): lambda walker: walker.binary(4),
        0x8E: lambda walker: walker.binary(8),
        ord(")"): lambda walker: walker.tuple_of(0),
        0x85: lambda walker: walker.tuple_of(1),
        0x86: lambda walker: walker.tuple_of(2),
        0x87: lambda walker: walker.tuple_of(3),
        ord("t"): _Walker.tuple_from_mark,
        0x93: _Walker.name,
        ord("R"): _Walker.call,
        ord("]"): _Walker.new_list,
        ord("a"): _Walker.append,
        ord("e"): _Walker.appends,
    }
)
