"""Writes chunks for stock engines that receive them in-band: their `pickle.loads` makes CPU tensors of the bytes.

The pickle is a fixed frame of opcodes around the raw chunks.  Evaluated, it is

    as_tensor = functools.partial(torch.frombuffer, dtype=torch.<dtype>)
    [torch.reshape(as_tensor(bytearray(chunk)), shape) for chunk in chunks]

where the bytearray is an opcode of protocol 5 and neither `frombuffer` nor `reshape` copies: the engine's unpickling
copies a chunk once, out of the message, and the tensor is contiguous, writable and owns its memory.  On this side a
chunk is copied once as well, out of L1 into the frame, which is then sent as it is.  Between the two, msgpack decoding
in the engine and the socket copy; that is the price of sending bytes in-band.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import prod
from typing import Final

import msgspec

from lmcache_client.errors import ProtocolError
from lmcache_client.layout import ITEM_BYTES
from lmcache_client.messages import RetrieveContext

Buffer = bytes | bytearray | memoryview

REPLY_MAX_BYTES: Final = 2**32 - 1
"""What the length field of a msgpack `bin` holds."""

_LENGTH = struct.Struct("<Q")
_DIMENSION = struct.Struct("<Q")


def _text(value: str) -> bytes:
    data = value.encode("ascii")
    return b"\x8c" + bytes((len(data),)) + data


def _global(module: str, name: str) -> bytes:
    return _text(module) + _text(name) + b"\x93"


def _prologue(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Leaves the empty list and a mark on the stack, and in the memo: 0 as_tensor, 1 reshape, 2 the shape."""
    keywords = b"}" + _text("dtype") + _global("torch", dtype) + b"s"
    # 0x92 makes partial(torch.frombuffer, **keywords); "0" takes it off the stack once it is memoized.
    as_tensor = _global("functools", "partial") + _global("torch", "frombuffer") + b"\x85" + keywords + b"\x92"
    # A ninth byte of zero: the integers are signed.
    dimensions = b"".join(b"\x8a\x09" + _DIMENSION.pack(size) + b"\x00" for size in shape)
    memoized = (as_tensor, _global("torch", "reshape"), b"(" + dimensions + b"t")
    return b"\x80\x05" + b"".join(value + b"\x940" for value in memoized) + b"]("


_CHUNK_HEAD: Final = b"h\x01h\x00\x96"
"""reshape, as_tensor, and the opcode of the bytearray whose length and bytes follow."""
_CHUNK_TAIL: Final = b"\x85Rh\x02\x86R"
"""Calls as_tensor on the bytearray, then reshape on the tensor and the shape."""
_EPILOGUE: Final = b"e."


def pickle_tensors(dtype: str, shape: tuple[int, ...], chunks: Sequence[Buffer]) -> list[Buffer]:
    """The pieces of a pickle of a list of tensors of one dtype and shape; the chunks themselves are among them, not
    copied.  Raises ValueError when a chunk has not the size of its tensor or the dtype is not one that is stored."""
    if dtype not in ITEM_BYTES:
        raise ValueError(f"dtype '{dtype}' is not one that this server stores; known: {', '.join(ITEM_BYTES)}")
    size = prod(shape) * ITEM_BYTES[dtype]
    head = _CHUNK_HEAD + _LENGTH.pack(size)
    pieces: list[Buffer] = [_prologue(dtype, shape)]
    for number, chunk in enumerate(chunks):
        if memoryview(chunk).nbytes != size:
            raise ValueError(
                f"chunk {number} has {memoryview(chunk).nbytes} bytes, a tensor of {shape} {dtype} has {size}"
            )
        pieces += (head, chunk, _CHUNK_TAIL)
    pieces.append(_EPILOGUE)
    return pieces


def inband_reply(
    dtype: str, shape: tuple[int, ...], chunks: Sequence[Buffer], context: RetrieveContext | None = None
) -> msgspec.Raw:
    """A successful PrepareRetrieveReply with the chunks in its data, as one encoded frame.  Copies each chunk once.

    Raises ProtocolError when they do not fit into one frame (4 GiB); answer that retrieve as a miss."""
    pieces = pickle_tensors(dtype, shape, chunks)
    size = sum(memoryview(piece).nbytes for piece in pieces)
    if size > REPLY_MAX_BYTES:
        raise ProtocolError(
            f"prepare_retrieve: {len(chunks)} chunks take {size} bytes in-band, more than the {REPLY_MAX_BYTES} of one "
            "frame; shared memory has no such limit"
        )
    head = b"\x83\xa7success\xc3\xa4data\xc6" + size.to_bytes(4, "big")
    tail = b"\xa7context" + msgspec.msgpack.encode(context or RetrieveContext())
    return msgspec.Raw(b"".join((head, *pieces, tail)))
