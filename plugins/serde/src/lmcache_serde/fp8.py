"""Eight-bit floats, e4m3fn, with a scale for each channel of each layer's keys and values.

    scales    u8 per channel: exponent of the largest value in the chunk, as single precision writes it
    codes     u8 per element, [slot][channel]

A channel is one dimension of one head, so that a head or a channel with outliers does not cost the others their precision.
Scales are powers of two: they put the largest value of a channel into [128, 256], cost a byte, and round nothing.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from lmcache_core import DamagedObjectError
from lmcache_serde.byte_planes import Bytes
from lmcache_serde.elements import Floats, FloatType, Raw
from lmcache_serde.quantized_planes import QuantizedPlanes
from lmcache_serde.tiles import tiles

ERROR_BOUND: Final = 2.0**-4
"""Half a step of three bits of mantissa."""

_TOP = 14
"""Exponent field of an e4m3 number in [128, 256): one below the last, so that rounding up overflows nothing."""
_LEAST, _MOST = 18, 140
"""Exponents of channels.  Smaller ones (below 2^-108) count as the least; `FloatType.within` keeps larger ones away."""
_NORMAL = 8
"""The first code that is not a subnormal."""
_RARE_SHARE = 8
"""With more than one element in this number outside the fast path, they are not corrected one by one."""


class Fp8Planes:
    """The codec."""

    def stored_bytes(self, slots: int, hidden: int) -> int:
        return hidden + slots * hidden

    def quantize(self, plane: Raw, kind: FloatType, into: Bytes) -> bool:
        slots, hidden = plane.shape
        largest = _largest(plane, kind)
        if not kind.within(float(largest.max())):
            return False
        exponents = np.clip(largest.view(np.uint32) >> 23, _LEAST, _MOST).astype(np.uint8)
        into[:hidden] = exponents
        codes = into[hidden:].reshape(slots, hidden)
        factors = _power_of_two(_TOP - exponents.astype(np.int32))
        for rows, columns in tiles(slots, hidden):
            raw, code, here = plane[rows, columns], codes[rows, columns], exponents[columns]
            if kind.name == "bfloat16":
                _encode_bfloat16(raw, here, factors[columns], kind, code)
            else:
                floats = np.empty(raw.shape, np.float32)
                kind.read(raw, floats)
                floats *= factors[columns]
                code[:] = _codes(floats)
        return True

    def restore(self, stored: Bytes, kind: FloatType, plane: Raw) -> None:
        slots, hidden = plane.shape
        exponents = stored[:hidden]
        if exponents.min() < _LEAST or exponents.max() > _MOST:
            raise DamagedObjectError(f"fp8: scales outside 2^{_LEAST - 127} to 2^{_MOST - 127}")
        codes = stored[hidden:].reshape(slots, hidden)
        factors = _power_of_two(exponents.astype(np.int32) - _TOP)
        for rows, columns in tiles(slots, hidden):
            code, raw = codes[rows, columns], plane[rows, columns]
            if kind.name == "bfloat16":
                _decode_bfloat16(code, exponents[columns], factors[columns], kind, raw)
            else:
                floats = _floats(code)
                floats *= factors[columns]
                kind.write(floats, raw)


def open_fp8(settings: None) -> QuantizedPlanes:
    return QuantizedPlanes("fp8", Fp8Planes(), ERROR_BOUND)


def _power_of_two(exponents: NDArray[np.int32]) -> Floats:
    """2 to these powers, each of a normal number."""
    powers: Floats = ((exponents + 127).astype(np.uint32) << 23).view(np.float32)
    return powers


def _largest(plane: Raw, kind: FloatType) -> Floats:
    """The largest magnitude of each channel; NaN where there is one."""
    if kind.name == "bfloat16":  # magnitudes are ordered like their bits, NaN last
        bits = np.zeros(plane.shape[1], np.uint16)
        for rows, columns in tiles(*plane.shape):
            here = (plane[rows, columns] & np.uint16(0x7FFF)).max(axis=0)
            np.maximum(bits[columns], here, out=bits[columns])
        return (bits.astype(np.uint32) << 16).view(np.float32)
    magnitudes: Floats = np.maximum(plane.max(axis=0), -plane.min(axis=0)).astype(np.float32)
    return magnitudes


def _codes(scaled: Floats) -> Bytes:
    """Codes of numbers whose exponent field is that of e4m3: the unit is 2^-120, so that what is subnormal there is
    subnormal here, and the code is the upper part of the word, rounded to nearest, ties to even."""
    bits = scaled.view(np.uint32)
    rounded = bits >> 20
    rounded &= 1
    rounded += 0x7FFFF
    rounded += bits
    sign = rounded >> 24
    sign &= 0x80
    rounded >>= 20
    rounded &= 0x7F
    rounded |= sign
    return rounded.astype(np.uint8)


def _floats(codes: Bytes) -> Floats:
    """What `_codes` was given, as far as it is left."""
    words = codes.astype(np.uint32)
    sign = words & 0x80
    sign <<= 24
    words &= 0x7F
    words <<= 20
    words |= sign
    return words.view(np.float32)


def _encode_bfloat16(raw: Raw, exponents: Bytes, factors: Floats, kind: FloatType, into: Bytes) -> None:
    """As `_codes`, in sixteen bits: four times as fast.  Subnormals, a rare thing below 2^-14 of their channel's largest,
    need other shifts and take the long way."""
    magnitude = (raw & np.uint16(0x7FFF)).view(np.int16)
    magnitude -= (exponents.astype(np.int16) - _TOP) << 7
    rare = magnitude < 128
    count = int(np.count_nonzero(rare))
    if count * _RARE_SHARE > rare.size:
        floats = np.empty(raw.shape, np.float32)
        kind.read(raw, floats)
        floats *= factors
        into[:] = _codes(floats)
        return
    odd = magnitude >> 4
    odd &= 1
    odd += 7
    magnitude += odd
    magnitude >>= 4
    sign = raw >> 8
    sign &= 0x80
    magnitude |= sign.view(np.int16)
    np.copyto(into, magnitude, casting="unsafe")
    if count:
        at_row, at_column = _places(rare)
        few = np.empty(count, np.float32)
        kind.read(raw[at_row, at_column], few)
        few *= factors[at_column]
        into[at_row, at_column] = _codes(few)


def _decode_bfloat16(codes: Bytes, exponents: Bytes, factors: Floats, kind: FloatType, into: Raw) -> None:
    magnitude = (codes & np.uint8(0x7F)).astype(np.uint16)
    rare = magnitude < _NORMAL
    count = int(np.count_nonzero(rare))
    magnitude <<= 4
    magnitude += (exponents.astype(np.uint16) - _TOP) << 7
    sign = (codes & np.uint8(0x80)).astype(np.uint16)
    sign <<= 8
    np.bitwise_or(magnitude, sign, out=into)
    if count:
        at_row, at_column = _places(rare)
        few = _floats(codes[at_row, at_column])
        few *= factors[at_column]
        encoded = np.empty(count, np.uint16)
        kind.write(few, encoded)
        into[at_row, at_column] = encoded


def _places(true: NDArray[np.bool_]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows and columns of what is true: twenty times as fast as asking for both at once."""
    return np.divmod(np.flatnonzero(true), true.shape[1])
