"""Lossless compression of objects of any element type.

    blocks' table     u32 per block and plane: length of what follows, highest bit set where it is as it was
    data              of each block, each plane

A block is 256 KiB of payload; each of its byte planes is a frame of its own, so that one that does not compress (mantissas)
is copied and not decoded.  Element size and block size stand in front of the table.
"""

from __future__ import annotations

import struct
from typing import Annotated, Final, Literal

import numpy as np
import zstandard
from pydantic import Field

from lmcache_core import ITEM_BYTES, DamagedObjectError, ObjectKey, ObjectLayout, PluginSettings, Serde
from lmcache_serde import byte_planes
from lmcache_serde.byte_planes import Bytes

FORMAT: Final = 1
BLOCK_BYTES: Final = 256 * 1024
"""Block, planes and what they become stay in a core's own cache."""
WORTH: Final = 0.98
"""A plane that keeps more than this share of its bytes is stored as it was: it costs nothing when it is read."""

_AS_IT_WAS = 1 << 31
_PREFIX = struct.Struct("<BI")
_ENTRY: Final = np.dtype("<u4")

# Exponents repeat as symbols, not as strings: Huffman coding finds what there is, and searching for long repetitions
# finds noise.  A table of 1,024 places still catches zeros and padding.
_SYMBOLS_ONLY: Final = zstandard.ZstdCompressionParameters(
    window_log=18,
    hash_log=10,
    chain_log=6,
    search_log=1,
    min_match=7,
    target_length=0,
    strategy=zstandard.STRATEGY_FAST,
    write_checksum=False,
)


class ZstdSettings(PluginSettings):
    """How hard to press, and how wide elements are."""

    level: Annotated[
        int,
        Field(
            ge=0,
            le=19,
            description="0: symbol statistics only, which is fastest and smallest for KV; 1 to 19: zstd's own levels.",
        ),
    ] = 0
    element_bytes: Annotated[
        Literal[1, 2, 4, 8] | None,
        Field(description="Bytes of an element, where the layout does not tell (chunks of layers of several shapes)."),
    ] = None


class ZstdSerde(Serde):
    """Decodes what any level wrote."""

    def __init__(self, settings: ZstdSettings) -> None:
        self._level = settings.level
        self._element_bytes = settings.element_bytes

    def parameters(self) -> bytes:
        return bytes([FORMAT, self._level])

    def stored_bytes_max(self, layout: ObjectLayout) -> int:
        # As many planes as elements have bytes, also where no whole elements are given: the bound must never fall.
        length = layout.payload_bytes
        return _PREFIX.size + _ENTRY.itemsize * _entries(length, self._width(layout)) + length

    def encode(self, key: ObjectKey, layout: ObjectLayout, payload: memoryview, into: memoryview) -> int:
        length = len(payload)
        size = self._width(layout)
        size = 1 if length % size else size
        source, target = np.frombuffer(payload, np.uint8), np.frombuffer(into, np.uint8)
        _PREFIX.pack_into(into, 0, size, BLOCK_BYTES)
        table = np.empty(_entries(length, size), _ENTRY)
        at = _PREFIX.size + table.nbytes
        compressor = self._compressor()
        planes = np.empty((size, BLOCK_BYTES // size), np.uint8)
        entry = 0
        for begin in range(0, length, BLOCK_BYTES):
            block = source[begin : begin + BLOCK_BYTES]
            here = planes[:, : len(block) // size]
            byte_planes.split(block, here)
            for plane in here:
                pressed = compressor.compress(plane)
                if len(pressed) < WORTH * len(plane):
                    target[at : at + len(pressed)] = np.frombuffer(pressed, np.uint8)
                    table[entry] = len(pressed)
                    at += len(pressed)
                else:
                    target[at : at + len(plane)] = plane
                    table[entry] = len(plane) | _AS_IT_WAS
                    at += len(plane)
                entry += 1
        target[_PREFIX.size : _PREFIX.size + table.nbytes] = table.view(np.uint8)
        return at

    def decode(
        self, key: ObjectKey, layout: ObjectLayout, parameters: bytes, stored: memoryview, into: memoryview
    ) -> None:
        if parameters[:1] != bytes([FORMAT]):
            raise DamagedObjectError(f"zstd: format {parameters[:1].hex() or 'missing'}; this version reads {FORMAT}")
        size, block_bytes, table, at = _layout_of(stored, len(into))
        source, target = np.frombuffer(stored, np.uint8), np.frombuffer(into, np.uint8)
        decompressor = zstandard.ZstdDecompressor()
        planes = np.empty((size, block_bytes // size), np.uint8)
        entries = iter(table)
        for begin in range(0, len(into), block_bytes):
            block = target[begin : begin + block_bytes]
            here = planes[:, : len(block) // size]
            for plane in here:
                entry = next(entries)
                end = at + (entry & ~_AS_IT_WAS)
                plane[:] = _plane(source[at:end], len(plane), as_it_was=bool(entry & _AS_IT_WAS), by=decompressor)
                at = end
            byte_planes.join(here, block)

    def _width(self, layout: ObjectLayout) -> int:
        return self._element_bytes or ITEM_BYTES[layout.dtype]

    def _compressor(self) -> zstandard.ZstdCompressor:
        """One for each object: they cannot be shared among threads."""
        if self._level == 0:
            return zstandard.ZstdCompressor(compression_params=_SYMBOLS_ONLY)
        return zstandard.ZstdCompressor(level=self._level, write_checksum=False)


def open_zstd(settings: ZstdSettings) -> ZstdSerde:
    return ZstdSerde(settings)


def _entries(length: int, size: int, block_bytes: int = BLOCK_BYTES) -> int:
    return -(-length // block_bytes) * size


def _layout_of(stored: memoryview, length: int) -> tuple[int, int, list[int], int]:
    """Element size, block size, table, and where the data begins.  All lengths are checked here, before anything is
    allocated or read by them."""
    if len(stored) < _PREFIX.size:
        raise DamagedObjectError(f"zstd: {len(stored)} bytes are not an object")
    size, block_bytes = _PREFIX.unpack_from(stored)
    # Sizes that no version wrote could make the planes as large as the sender likes.
    if size not in (1, 2, 4, 8) or block_bytes != BLOCK_BYTES or length % size:
        raise DamagedObjectError(f"zstd: elements of {size} and blocks of {block_bytes} bytes in {length}")
    begin = _PREFIX.size + _ENTRY.itemsize * _entries(length, size, block_bytes)
    if len(stored) < begin:
        raise DamagedObjectError(f"zstd: {len(stored)} bytes end in a table of {begin}")
    table = np.frombuffer(stored[_PREFIX.size : begin], _ENTRY)
    data = int((table & np.uint32(_AS_IT_WAS - 1)).sum(dtype=np.uint64))
    if begin + data != len(stored):
        raise DamagedObjectError(f"zstd: the table says {begin + data} bytes, there are {len(stored)}")
    return size, block_bytes, table.tolist(), begin


def _plane(data: Bytes, length: int, *, as_it_was: bool, by: zstandard.ZstdDecompressor) -> Bytes:
    if as_it_was:
        if len(data) != length:
            raise DamagedObjectError(f"zstd: a plane of {len(data)} bytes where {length} belong")
        return data
    try:
        # The decompressor allocates what a frame says of itself, whatever limit it is given.
        declared = zstandard.get_frame_parameters(data.data).content_size
        if declared != length:
            raise DamagedObjectError(f"zstd: a frame of {declared} bytes where {length} belong")
        plain = by.decompress(data.data, max_output_size=length, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise DamagedObjectError(f"zstd: {error}") from None
    if len(plain) != length:
        raise DamagedObjectError(f"zstd: {len(plain)} bytes came out where {length} belong")
    return np.frombuffer(plain, np.uint8)
