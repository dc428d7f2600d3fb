"""Which names and calls make up a pickled tensor, as inert values: nothing here imports or calls what they name."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from math import prod
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from lmcache_client.errors import ProtocolError
from lmcache_client.layout import ITEM_BYTES
from lmcache_core.server.legacy_storage import PickledStorage, read_storage

_RANK_MAX: Final = 8


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
    """The empty dictionary that stands where a tensor's backward hooks would be."""


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


def find_global(module: Any, name: Any) -> object:
    """The value that stands for a global.  Raises ProtocolError for all but those of a pickled tensor."""
    # The types first: what is not text can be a tuple that is exponentially large to hash.
    found = _GLOBALS.get((module, name)) if isinstance(module, str) and isinstance(name, str) else None
    if found is None:
        raise ProtocolError("a global is named that does not occur in a list of tensors")
    return found


def evaluate_call(function: Any, arguments: Any) -> object:
    """What a call gives: a storage, a tensor or no hooks.  Raises ProtocolError for any other call."""
    rule = _RULES.get(function) if isinstance(function, _Name) else None
    if rule is None or not isinstance(arguments, tuple):
        raise ProtocolError("a call is not one of those that make a tensor")
    return rule(arguments)


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
