"""Pickles in the form in which torch writes them, made with the pickle module of the standard library alone."""

from __future__ import annotations

import io
import pickle
import struct
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lmcache_client.layout import ITEM_BYTES

STORAGE_CLASSES = {
    "bfloat16": "BFloat16Storage",
    "float16": "HalfStorage",
    "float32": "FloatStorage",
    "float64": "DoubleStorage",
    "uint8": "ByteStorage",
    "int8": "CharStorage",
}
MAGIC = 0x1950A86A20F9469CFC6C
SYSTEM = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}

Pickler = Callable[..., bytes]


def _placeholder(module: ModuleType, name: str) -> Any:
    def function(*_arguments: Any) -> None:
        raise AssertionError(f"{module.__name__}.{name} was called")

    function.__name__ = function.__qualname__ = name
    function.__module__ = module.__name__
    setattr(module, name, function)
    return function


class _Reduced:
    """Pickles as a call, or as a name where `call` is text."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __reduce__(self) -> Any:
        return self._call


class FakeTorch:
    """Stand-ins for the names that pickled tensors refer to; none of them does anything."""

    def __init__(self) -> None:
        self.modules = {name: ModuleType(name) for name in ("torch", "torch._utils", "torch.storage")}
        self._rebuild = _placeholder(self.modules["torch._utils"], "_rebuild_tensor_v2")
        self._rebuild_untyped = _placeholder(self.modules["torch._utils"], "_rebuild_tensor_v3")
        self._load = _placeholder(self.modules["torch.storage"], "_load_from_bytes")
        torch = self.modules["torch"]
        self._classes: dict[str | None, type] = {}
        for dtype, name in STORAGE_CLASSES.items():
            self._classes[dtype] = type(name, (), {"__module__": "torch"})
            setattr(torch, name, self._classes[dtype])
        self._classes[None] = type("UntypedStorage", (), {"__module__": "torch.storage"})
        self.modules["torch.storage"].__dict__["UntypedStorage"] = self._classes[None]
        self._dtypes: dict[str, _Reduced] = {}
        for dtype in ITEM_BYTES:
            self._dtypes[dtype] = _Reduced(dtype)
            self._dtypes[dtype].__module__ = "torch"
            setattr(torch, dtype, self._dtypes[dtype])

    def storage(self, dtype: str, data: bytes, key: str = "94835061036192") -> bytes:
        """The inner stream of one tensor."""
        typed = dtype in STORAGE_CLASSES
        items = len(data) // ITEM_BYTES[dtype] if typed else len(data)
        description = ("storage", self._classes[dtype if typed else None], key, "cpu", items, None)

        class Describing(pickle.Pickler):
            def persistent_id(self, value: Any) -> Any:
                return description if value is Ellipsis else None

        stream = io.BytesIO()
        for value in (MAGIC, 1001, SYSTEM):
            pickle.dump(value, stream, protocol=2)
        Describing(stream, protocol=2).dump(Ellipsis)
        pickle.dump([key], stream, protocol=2)
        return stream.getvalue() + struct.pack("<q", items) + data

    def tensor(
        self, dtype: str, shape: Sequence[int], data: bytes, *, strides: Sequence[int] | None = None, offset: int = 0
    ) -> Any:
        """A value that pickles as that tensor does."""
        if strides is None:
            strides, step = [], 1
            for size in reversed(shape):
                strides.insert(0, step)
                step *= size
        storage = _Reduced((self._load, (self.storage(dtype, data),)))
        arguments: tuple[Any, ...] = (storage, offset, tuple(shape), tuple(strides), False, OrderedDict())
        if dtype in STORAGE_CLASSES:
            return _Reduced((self._rebuild, arguments))
        return _Reduced((self._rebuild_untyped, (*arguments, self._dtypes[dtype])))


@pytest.fixture(scope="module")
def fake_torch() -> Iterator[FakeTorch]:
    """In place of torch, whether it is installed or not, until the module's last test."""
    fake = FakeTorch()
    with pytest.MonkeyPatch.context() as patch:
        for name, module in fake.modules.items():
            patch.setitem(sys.modules, name, module)
        yield fake


@pytest.fixture(scope="session")
def recorded() -> dict[str, bytes]:
    """What torch 2.13 wrote under Python 3.11."""
    return {path.stem: path.read_bytes() for path in (Path(__file__).parent / "recorded").glob("*.pickle")}
