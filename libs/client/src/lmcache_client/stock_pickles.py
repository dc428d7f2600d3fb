"""Reads the `data` of a stock engine's `commit_store`: the pickle of a list of CPU tensors.  EXECUTES NOTHING.

The opcodes are walked over a stack of inert values.  A global is looked up in a table of the few names that belong there,
and a call is accepted only in one of the known forms; neither imports or calls anything.  All else is a ProtocolError.
Tensor bytes are slices of the input.  The number of tensors that the caller expects bounds work and memory; no claim of the
input does.

The storage of a tensor is an inner stream, which torch writes in its format from before zip files: five pickles, a count
and the raw bytes.  Only four things in it vary (class, key, count, bytes), so it is matched against a pattern.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from enum import Enum, auto
from math import prod
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from lmcache_client.errors import ProtocolError
from lmcache_client.layout import ITEM_BYTES

DTYPE_OF_CLASS: Final = {
    "BFloat16Storage": "bfloat16",
    "HalfStorage": "float16",
    "FloatStorage": "float32",
    "DoubleStorage": "float64",
    "ByteStorage": "uint8",
    "CharStorage": "int8",
}
"""Types that came after these travel as untyped storages; their dtype is beside the storage."""

_RANK_MAX: Final = 8
_HEADS: Final = (b"\x80\x04", b"\x80\x05")
_STOP: Final = ord(".")
_LONG_MAX_BYTES: Final = 8
_OPCODES_PER_TENSOR: Final = 64
"""A pickler writes about 45 for a tensor."""
_COUNT = struct.Struct("<q")
_HEAD_MAX_BYTES = 512
"""More than the longest head that the pattern can match."""

# Magic number, protocol version and the machine's type sizes: three pickles without anything that varies.
_PREAMBLE = (
    b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
    b"\x80\x02M\xe9\x03."
    b"\x80\x02}q\x00(X\x10\x00\x00\x00protocol_versionq\x01M\xe9\x03X\x0d\x00\x00\x00little_endianq\x02\x88"
    b"X\x0a\x00\x00\x00type_sizesq\x03}q\x04(X\x05\x00\x00\x00shortq\x05K\x02X\x03\x00\x00\x00intq\x06K\x04"
    b"X\x04\x00\x00\x00longq\x07K\x04uu."
)
# The storage's description, and the list of the keys whose bytes follow: just the one.
_HEAD = re.compile(
    re.escape(_PREAMBLE)
    + rb"\x80\x02\(X\x07\x00\x00\x00storageq\x00"
    + rb"c(?P<home>torch|torch\.storage)\n(?P<kind>[A-Za-z0-9]{1,24}Storage)\nq\x01"
    + rb"X(?P<size>[\x01-\x14])\x00\x00\x00(?P<key>[0-9]{1,20})q\x02X\x03\x00\x00\x00cpuq\x03"
    + rb"(?:K(?P<byte>.)|M(?P<short>..)|J(?P<int>....)|\x8a(?P<width>[\x04-\x08])(?P<long>.{4,8}?))"
    + rb"Ntq\x04Q\."
    + rb"\x80\x02\]q\x00X(?P=size)\x00\x00\x00(?P=key)q\x01a\.",
    re.DOTALL,
)


class PickledStorage(NamedTuple):
    """The bytes of one tensor, not copied; `dtype` is None where the storage itself has no type."""

    dtype: str | None
    data: memoryview


def read_storage(stream: memoryview) -> PickledStorage:
    """Read one inner stream, from its first byte to its last.  Raises ProtocolError."""
    head = _HEAD.match(bytes(stream[:_HEAD_MAX_BYTES]))
    if head is None or len(head["key"]) != head["size"][0]:
        raise ProtocolError("a tensor's storage is not in the form in which torch writes CPU storages")
    kind = head["kind"].decode()
    untyped = head["home"] == b"torch.storage" and kind == "UntypedStorage"
    dtype = None if untyped else DTYPE_OF_CLASS.get(kind) if head["home"] == b"torch" else None
    if dtype is None and not untyped:
        raise ProtocolError(f"a storage of class '{kind}' holds no type that this server stores")
    raw = stream[head.end() + _COUNT.size :]
    items = _described_count(head)
    if len(stream) < head.end() + _COUNT.size or _COUNT.unpack_from(stream, head.end()) != (items,):
        raise ProtocolError("a storage's two counts of its elements differ or are cut off")
    item_bytes = 1 if dtype is None else ITEM_BYTES[dtype]
    if items * item_bytes != len(raw):
        raise ProtocolError(f"a storage of {items} elements of {item_bytes} bytes comes with {len(raw)} bytes")
    return PickledStorage(dtype, raw)


def _described_count(head: re.Match[bytes]) -> int:
    """The element count of the description, or -1 where its long form is not as long as it says."""
    if head["long"] is None:
        digits: bytes = head["byte"] or head["short"] or head["int"]
        # The shorter forms are unsigned, the four-byte one is not.
        return int.from_bytes(digits, "little", signed=head["int"] is not None)
    if head["width"][0] != len(head["long"]):
        return -1
    return int.from_bytes(head["long"], "little", signed=True)


class PickledTensor(NamedTuple):
    """One C-contiguous tensor; `data` is a view of the message that it came in."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview


class _Name(Enum):
    REBUILD = auto()
    REBUILD_UNTYPED = auto()
    LOAD_STORAGE = auto()
    ORDERED_DICT = auto()


class _Dtype(NamedTuple):
    name: str


class _NoHooks:
    """The empty dictionary in the place where a tensor's backward hooks would be."""


_GLOBALS: Final[MappingProxyType[tuple[str, str], _Name | _Dtype]] = MappingProxyType(
    {
        ("torch._utils", "_rebuild_tensor_v2"): _Name.REBUILD,
        # For types that have no storage class of their own (all 8-bit floats): the dtype comes as one more argument.
        ("torch._utils", "_rebuild_tensor_v3"): _Name.REBUILD_UNTYPED,
        ("torch.storage", "_load_from_bytes"): _Name.LOAD_STORAGE,
        ("collections", "OrderedDict"): _Name.ORDERED_DICT,
        **{("torch", name): _Dtype(name) for name in ITEM_BYTES},
    }
)


def _load_storage(arguments: tuple[Any, ...]) -> PickledStorage:
    if len(arguments) != 1 or not isinstance(arguments[0], memoryview):
        raise ProtocolError("a storage is loaded from something that is not bytes")
    return read_storage(arguments[0])


def _no_hooks(arguments: tuple[Any, ...]) -> _NoHooks:
    if arguments:
        raise ProtocolError("a tensor has backward hooks")
    return _NoHooks()


def _rebuild(arguments: tuple[Any, ...]) -> PickledTensor:
    if len(arguments) != 6 or not isinstance(arguments[0], PickledStorage) or arguments[0].dtype is None:
        raise ProtocolError("a tensor is rebuilt from the wrong arguments")
    return _tensor(arguments[0].dtype, arguments)


def _rebuild_untyped(arguments: tuple[Any, ...]) -> PickledTensor:
    if len(arguments) != 7 or not isinstance(arguments[0], PickledStorage) or not isinstance(arguments[6], _Dtype):
        raise ProtocolError("an untyped tensor is rebuilt from the wrong arguments")
    if arguments[0].dtype is not None:
        raise ProtocolError("a tensor has two dtypes")
    return _tensor(arguments[6].name, arguments[:6])


def _tensor(dtype: str, arguments: tuple[Any, ...]) -> PickledTensor:
    storage, offset, shape, strides, requires_grad, hooks = arguments
    if type(offset) is not int or offset != 0 or requires_grad is not False or not isinstance(hooks, _NoHooks):
        raise ProtocolError("a tensor has an offset into its storage, a gradient or hooks")
    if not _are_dimensions(shape) or not _are_dimensions(strides) or len(shape) != len(strides):
        raise ProtocolError(f"a shape or its strides are not 1 to {_RANK_MAX} integers")
    shown = f"a tensor of shape {list(shape)} and type {dtype}"
    if not len(storage.data) or prod(shape) * ITEM_BYTES[dtype] != len(storage.data):
        raise ProtocolError(f"{shown} comes with {len(storage.data)} bytes")
    if not _are_contiguous(shape, strides):
        raise ProtocolError(f"{shown} has strides {list(strides)}, which is not contiguous")
    return PickledTensor(dtype, shape, storage.data)


def _are_dimensions(value: Any) -> bool:
    if not isinstance(value, tuple) or not 1 <= len(value) <= _RANK_MAX:
        return False
    return all(type(item) is int and item >= 0 for item in value)


def _are_contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """As torch sees it: the stride of a dimension of size 1 means nothing."""
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


_RULES: Final[MappingProxyType[_Name, Callable[[tuple[Any, ...]], object]]] = MappingProxyType(
    {
        _Name.LOAD_STORAGE: _load_storage,
        _Name.ORDERED_DICT: _no_hooks,
        _Name.REBUILD: _rebuild,
        _Name.REBUILD_UNTYPED: _rebuild_untyped,
    }
)


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
        module, name = self._pop(2)
        # The types first: what is not text can be a tuple that is exponentially large to hash.
        found = _GLOBALS.get((module, name)) if isinstance(module, str) and isinstance(name, str) else None
        if found is None:
            raise ProtocolError("a global is named that does not occur in a list of tensors")
        self._stack.append(found)

    def call(self) -> None:
        function, arguments = self._pop(2)
        rule = _RULES.get(function) if isinstance(function, _Name) else None
        if rule is None or not isinstance(arguments, tuple):
            raise ProtocolError("a call is not one of those that make a tensor")
        self._stack.append(rule(arguments))

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
