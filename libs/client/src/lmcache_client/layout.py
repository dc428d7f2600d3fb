"""The shape of a stored chunk object, and the fingerprint that keys have for it."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from blake3 import blake3

ITEM_BYTES = {
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
}
"""Bytes of one element, by the torch name of its type, without `torch.`."""

PARTS_MAX = 64
"""Regions of one chunk: groups of layers that differ in shape."""

ORDER_CHARS_MAX = 64
"""Of the name of an order of elements."""

_SHAPE = struct.Struct("<BIIQ")
_BLOCK = struct.Struct("<I")
_ORDER = re.compile("[0-9A-Za-z]+")


@dataclass(frozen=True, slots=True)
class ObjectLayout:
    """A chunk as it is stored: C-contiguous `[kv][layer][slot][hidden]`, the kv axis absent where it is 1.

    `slots` are the token positions of one chunk, `hidden` is heads x head size (both halves where K and V are fused).

    Some engines keep the elements of a block in an order of their own, for example with K transposed. Such a chunk is a row of
    blocks of `block_slots` slots, and only within a block the elements of its slots are anywhere. `order` names their order;
    it is empty where the engine does not say it, and then means the only order that engines of this machine have.
    `block_slots` 0: each slot has its own elements, whatever blocks they came from.
    """

    kv_axis: int
    layers: int
    slots: int
    hidden: int
    dtype: str
    quantization: str = ""
    block_slots: int = 0
    order: str = ""
    shape: tuple[int, ...] = field(init=False, compare=False, repr=False)
    fingerprint: bytes = field(init=False, compare=False, repr=False)
    payload_bytes: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.dtype not in ITEM_BYTES:
            raise ValueError(f"dtype '{self.dtype}' is not one that this server stores; known: {', '.join(ITEM_BYTES)}")
        if self.kv_axis not in (1, 2) or min(self.layers, self.slots, self.hidden) < 1:
            raise ValueError(f"not the shape of a chunk: {self!r}")
        if self.layers >= 2**32 or self.slots >= 2**32 or self.hidden >= 2**64:
            raise ValueError(f"a dimension is too large: {self!r}")
        if not 0 <= self.block_slots < 2**32:
            raise ValueError(f"a block has 1 to {2**32 - 1} slots, or 0 where chunks do not depend on it: {self!r}")
        if self.order and not (
            self.block_slots and len(self.order) <= ORDER_CHARS_MAX and _ORDER.fullmatch(self.order)
        ):
            raise ValueError(
                f"an order within blocks has 1 to {ORDER_CHARS_MAX} letters and digits, and needs block_slots: {self!r}"
            )
        inner = (self.layers, self.slots, self.hidden)
        object.__setattr__(self, "shape", inner if self.kv_axis == 1 else (self.kv_axis, *inner))
        object.__setattr__(self, "fingerprint", blake3(self._identity()).digest(16))
        object.__setattr__(self, "payload_bytes", prod(self.shape) * ITEM_BYTES[self.dtype])

    def _identity(self) -> bytes:
        """As in docs/internals/object-format.md, "Object key"."""
        shape = _SHAPE.pack(self.kv_axis, self.layers, self.slots, self.hidden)
        names = f"{self.dtype}\0{self.quantization}"
        if not self.block_slots:
            return b"lmcache-layout-1" + shape + names.encode()
        return b"lmcache-layout-2" + shape + _BLOCK.pack(self.block_slots) + f"{names}\0{self.order}".encode()

    def __str__(self) -> str:
        blocks = f" in blocks of {self.block_slots}" if self.block_slots else ""
        return f"{self.dtype}{list(self.shape)}{blocks}{f' ordered {self.order}' if self.order else ''}"


@dataclass(frozen=True, slots=True)
class CompositeLayout:
    """A chunk of layers of several shapes: one region behind the other, without padding.

    Seen as a whole it is bytes: `dtype` and `shape` are those of a flat array."""

    parts: tuple[ObjectLayout, ...]
    shape: tuple[int, ...] = field(init=False, compare=False, repr=False)
    fingerprint: bytes = field(init=False, compare=False, repr=False)
    payload_bytes: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not 2 <= len(self.parts) <= PARTS_MAX:
            raise ValueError(f"{len(self.parts)} regions in a chunk; 2 to {PARTS_MAX} make a composite one")
        prints = b"".join(part.fingerprint for part in self.parts)
        object.__setattr__(self, "fingerprint", blake3(b"lmcache-layout-parts-1" + prints).digest(16))
        object.__setattr__(self, "payload_bytes", sum(part.payload_bytes for part in self.parts))
        object.__setattr__(self, "shape", (self.payload_bytes,))

    @property
    def dtype(self) -> str:
        return "uint8"

    def __str__(self) -> str:
        return " + ".join(map(str, self.parts))


ChunkLayout = ObjectLayout | CompositeLayout
"""What a stored chunk looks like."""


def joined_layout(parts: Sequence[ObjectLayout]) -> ChunkLayout:
    """The layout of a chunk of these regions.  One region is not a composite: all paths that write it must agree."""
    return parts[0] if len(parts) == 1 else CompositeLayout(tuple(parts))


def opaque_layout(length: int) -> ObjectLayout:
    """`length` bytes, 1 at least, of which nothing else is known."""
    return ObjectLayout(1, 1, 1, length, "uint8")
