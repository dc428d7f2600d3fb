"""What lossy serdes share: an object is a row of planes, one for each layer's keys and values.

    form u8              0: the payload follows as it was; 1: planes, of 32 bits of geometry and a table
    slots u32, hidden u64, type u8
    table                a byte per plane: 1 quantized, 0 as it was
    planes               one behind the other

Elements that are not floats of 16 or 32 bits (a cache that the engine quantized) are kept as they were, and so is a plane
with a NaN, an infinity or a magnitude that no scale suits: it comes back to the bit.
"""

from __future__ import annotations

import struct
from typing import Final, Protocol

import numpy as np

from lmcache_core import DamagedObjectError, ObjectKey, ObjectLayout, Serde
from lmcache_serde.byte_planes import Bytes
from lmcache_serde.elements import FLOATS, FloatType, Raw

FORMAT: Final = 1

_AS_IT_WAS, _PLANES = 0, 1
_GEOMETRY = struct.Struct("<BIQB")
_TYPES: Final = tuple(FLOATS)


class PlaneCodec(Protocol):
    """How one plane `[slots][hidden]` becomes fewer bytes.  Called from several threads at once."""

    def stored_bytes(self, slots: int, hidden: int) -> int:
        """Of any quantized plane of this shape."""
        ...

    def quantize(self, plane: Raw, kind: FloatType, into: Bytes) -> bool:
        """Fill `into`.  False: not a plane for this codec; `into` may have been written to."""
        ...

    def restore(self, stored: Bytes, kind: FloatType, plane: Raw) -> None:
        """Fill `plane`.  Raises DamagedObjectError for scales that `quantize` never writes."""
        ...


class QuantizedPlanes(Serde):
    """Lossy, within the bound of its codec.  `choices` are the codec's parameters, which decoding must agree with."""

    needs_elements = True
    lossless = False

    def __init__(self, name: str, codec: PlaneCodec, error_bound: float, choices: bytes = b"") -> None:
        self._name = name
        self._codec = codec
        self.error_bound = error_bound
        self._parameters = bytes([FORMAT]) + choices

    def parameters(self) -> bytes:
        return self._parameters

    def stored_bytes_max(self, layout: ObjectLayout) -> int:
        if layout.dtype not in FLOATS:
            return 1 + layout.payload_bytes
        planes = layout.kv_axis * layout.layers
        quantized = planes * self._codec.stored_bytes(layout.slots, layout.hidden)
        return _GEOMETRY.size + planes + max(quantized, layout.payload_bytes)

    def encode(self, key: ObjectKey, layout: ObjectLayout, payload: memoryview, into: memoryview) -> int:
        target = np.frombuffer(into, np.uint8)
        kind = FLOATS.get(layout.dtype)
        if kind is None:
            target[0] = _AS_IT_WAS
            target[1 : 1 + len(payload)] = np.frombuffer(payload, np.uint8)
            return 1 + len(payload)
        shape = (layout.kv_axis * layout.layers, layout.slots, layout.hidden)
        planes = np.frombuffer(payload, kind.raw).reshape(shape)
        _GEOMETRY.pack_into(into, 0, _PLANES, layout.slots, layout.hidden, _TYPES.index(kind.name))
        table = target[_GEOMETRY.size : _GEOMETRY.size + len(planes)]
        at = _GEOMETRY.size + len(planes)
        quantized = self._codec.stored_bytes(layout.slots, layout.hidden)
        with np.errstate(all="ignore"):  # NaNs and infinities are looked for, not stumbled over
            for number, plane in enumerate(planes):
                # A plane so small that its scales outweigh it is kept, too.
                fits = quantized <= plane.nbytes
                table[number] = fits and self._codec.quantize(plane, kind, target[at : at + quantized])
                if not table[number]:
                    target[at : at + plane.nbytes] = plane.reshape(-1).view(np.uint8)
                at += quantized if table[number] else plane.nbytes
        return at

    def decode(
        self, key: ObjectKey, layout: ObjectLayout, parameters: bytes, stored: memoryview, into: memoryview
    ) -> None:
        source, target = np.frombuffer(stored, np.uint8), np.frombuffer(into, np.uint8)
        if parameters[:1] != self._parameters[:1]:
            raise self._damaged(f"format {parameters[:1].hex() or 'missing'}; this version reads {FORMAT}")
        if not len(source) or source[0] not in (_AS_IT_WAS, _PLANES):
            raise self._damaged(f"{len(source)} bytes of no known form")
        if source[0] == _AS_IT_WAS:
            if len(source) != 1 + len(target):
                raise self._damaged(f"{len(source) - 1} bytes for a payload of {len(target)}")
            target[:] = source[1:]
            return
        codec = self._codec_of(parameters)
        kind = self._kind(stored, layout, len(target))
        planes = target.view(kind.raw).reshape(-1, layout.slots, layout.hidden)
        table = source[_GEOMETRY.size : _GEOMETRY.size + len(planes)]
        at = _GEOMETRY.size + len(planes)
        quantized, plain = codec.stored_bytes(layout.slots, layout.hidden), planes[0].nbytes
        if (table > 1).any() or at + sum(quantized if is_one else plain for is_one in table) != len(source):
            raise self._damaged(f"{len(source)} bytes do not agree with the table of its planes")
        with np.errstate(all="ignore"):
            for plane, is_quantized in zip(planes, table, strict=True):
                if is_quantized:
                    codec.restore(source[at : at + quantized], kind, plane)
                    at += quantized
                else:
                    plane.reshape(-1).view(np.uint8)[:] = source[at : at + plain]
                    at += plain

    def _codec_of(self, parameters: bytes) -> PlaneCodec:
        """The one that wrote it, whatever this instance is set to."""
        if parameters != self._parameters:
            raise self._damaged(f"parameters {parameters.hex()[:32]} are none of this serde's")
        return self._codec

    def _kind(self, stored: memoryview, layout: ObjectLayout, length: int) -> FloatType:
        """The type of the elements, after the geometry was found to be the layout's."""
        planes = layout.kv_axis * layout.layers
        if len(stored) < _GEOMETRY.size + planes or length != layout.payload_bytes:
            raise self._damaged(f"{len(stored)} bytes for {layout}")
        _, slots, hidden, number = _GEOMETRY.unpack_from(stored)
        if (slots, hidden) != (layout.slots, layout.hidden) or _TYPES[number : number + 1] != (layout.dtype,):
            raise self._damaged(f"{slots} slots of {hidden} elements of type {number} are not {layout}")
        return FLOATS[layout.dtype]

    def _damaged(self, reason: str) -> DamagedObjectError:
        return DamagedObjectError(f"{self._name}: {reason}")
