"""What stock engines send in-band, made without torch: the pickle of a list of tensors, byte for byte in torch's form."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import prod

from lmcache_client.layout import ObjectLayout

_STORAGES = {
    "bfloat16": "BFloat16Storage",
    "float16": "HalfStorage",
    "float32": "FloatStorage",
    "float64": "DoubleStorage",
    "uint8": "ByteStorage",
    "int8": "CharStorage",
}
_PREAMBLE = (
    b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
    b"\x80\x02M\xe9\x03."
    b"\x80\x02}q\x00(X\x10\x00\x00\x00protocol_versionq\x01M\xe9\x03X\x0d\x00\x00\x00little_endianq\x02\x88"
    b"X\x0a\x00\x00\x00type_sizesq\x03}q\x04(X\x05\x00\x00\x00shortq\x05K\x02X\x03\x00\x00\x00intq\x06K\x04"
    b"X\x04\x00\x00\x00longq\x07K\x04uu."
)


def stock_pickle(layout: ObjectLayout, chunks: Sequence[bytes]) -> bytes:
    """The `data` of a `commit_store` with these chunks."""
    return b"\x80\x04](" + b"".join(_tensor(layout, chunk) for chunk in chunks) + b"e."


def _tensor(layout: ObjectLayout, data: bytes) -> bytes:
    shape = layout.shape
    strides = tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
    stream = _storage(_STORAGES[layout.dtype], prod(shape), data)
    storage = _global("torch.storage", "_load_from_bytes") + b"B" + struct.pack("<I", len(stream)) + stream + b"\x85R"
    hooks = _global("collections", "OrderedDict") + b")R"
    arguments = storage + b"K\x00" + _integers(shape) + _integers(strides) + b"\x89" + hooks
    return _global("torch._utils", "_rebuild_tensor_v2") + b"(" + arguments + b"tR"


def _storage(kind: str, count: int, data: bytes) -> bytes:
    key = b"1"
    described = (
        b"\x80\x02(X\x07\x00\x00\x00storageq\x00ctorch\n" + kind.encode() + b"\nq\x01"
        b"X\x01\x00\x00\x00" + key + b"q\x02X\x03\x00\x00\x00cpuq\x03J" + struct.pack("<i", count) + b"Ntq\x04Q."
    )
    return (
        _PREAMBLE + described + b"\x80\x02]q\x00X\x01\x00\x00\x00" + key + b"q\x01a." + struct.pack("<q", count) + data
    )


def _global(module: str, name: str) -> bytes:
    return b"".join(b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, name)) + b"\x93"


def _integers(values: Sequence[int]) -> bytes:
    return b"(" + b"".join(b"J" + struct.pack("<i", value) for value in values) + b"t"
