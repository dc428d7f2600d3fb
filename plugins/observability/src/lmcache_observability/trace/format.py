"""The file: eight bytes that name it and its version, then frames.

frame   length of the body (4 bytes), CRC-32 of the body (4 bytes), both little-endian; the body, a msgpack array of records

A frame is written at once, so that a crash or a full disk leaves whole frames and at most one torn one at the end.
Integers and short strings are small in msgpack, and hashes cannot be made smaller, so that nothing is compressed.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO, Final

import msgspec

from lmcache_observability.trace.records import Record

VERSION: Final = 1
MAGIC: Final = b"LMCTRAC" + bytes([VERSION])
FRAME_BYTES_MAX: Final = 16 << 20
"""A longer frame is not one of ours."""
_HEAD: Final = struct.Struct("<II")

encode_record = msgspec.msgpack.Encoder(enc_hook=repr).encode  # an event of a plugin may hold anything
_decode = msgspec.msgpack.Decoder(list[Record]).decode


def frame(records: Sequence[bytes]) -> bytes:
    """Of records that were encoded one by one, together less than `FRAME_BYTES_MAX`."""
    body = b"\xdd" + len(records).to_bytes(4, "big") + b"".join(records)
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


class FrameReader:
    """The records of a file, a frame at a time.  Reading ends, without an error, at the first frame that is torn or damaged,
    or at what was the end when reading began."""

    def __init__(self, file: BinaryIO, size_bytes: int) -> None:
        """`file` is at its beginning, and the caller closes it.  Raises ValueError for what is not a recording, or one
        of another version."""
        self._file, self._size = file, size_bytes
        head = file.read(len(MAGIC))
        if head[:-1] != MAGIC[:-1]:
            raise ValueError("it is not a recording of lmcache")
        if head != MAGIC:
            raise ValueError(f"it is a recording of version {head[-1]}, and this is made for version {VERSION}")
        self.good_bytes = len(MAGIC)
        """Up to here everything is whole."""

    @property
    def torn_bytes(self) -> int:
        """How much is behind the last whole frame that was read."""
        return self._size - self.good_bytes

    def __iter__(self) -> Iterator[Record]:
        while (records := self._next()) is not None:
            yield from records

    def _next(self) -> list[Record] | None:
        begin = self.good_bytes + _HEAD.size
        head = self._file.read(_HEAD.size) if begin <= self._size else b""
        if len(head) < _HEAD.size:
            return None
        length, checksum = _HEAD.unpack(head)
        if length > FRAME_BYTES_MAX or begin + length > self._size:
            return None
        body = self._file.read(length)
        if len(body) < length or zlib.crc32(body) != checksum:
            return None
        try:
            records: list[Record] = _decode(body)
        except (msgspec.MsgspecError, RecursionError):
            return None
        self.good_bytes = begin + length
        return records
