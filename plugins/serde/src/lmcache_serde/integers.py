"""Integers of eight or four bits, in groups of tokens: each channel of a group has an offset and a step.

    per group of `group_size` slots (the last one may be smaller)
      offset   bfloat16 per channel: no more than the smallest value
      step     bfloat16 per channel: the largest code reaches the largest value
      codes    [slot][channel]; of four bits: the first half of the slots low, the second half high

Groups go along tokens because a channel of a key has its own range for the whole sequence, and outliers live in few
channels.
"""

from __future__ import annotations

import struct
from typing import Annotated, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from lmcache_core import DamagedObjectError, PluginSettings
from lmcache_serde.byte_planes import Bytes
from lmcache_serde.elements import Floats, FloatType, Raw
from lmcache_serde.quantized_planes import FORMAT, PlaneCodec, QuantizedPlanes
from lmcache_serde.tiles import tiles

GROUP_MAX: Final = 65_535

_GROUP = struct.Struct("<H")
_SCALE_BYTES = 4
_STEP_MIN: Final = np.float32(2.0**-126)
Halves = NDArray[np.uint16]


class Int8Settings(PluginSettings):
    """How many tokens share a scale."""

    group_size: Annotated[
        int, Field(ge=2, le=GROUP_MAX, description="Tokens that share a scale; each group adds four bytes per channel.")
    ] = 64


class Int4Settings(PluginSettings):
    """How many tokens share a scale."""

    group_size: Annotated[
        int, Field(ge=2, le=GROUP_MAX, description="Tokens that share a scale; each group adds four bytes per channel.")
    ] = 32


class IntegerPlanes:
    """The codec; `bits` is 8 or 4."""

    def __init__(self, name: str, bits: int, group_size: int) -> None:
        self._name = name
        self._halved = bits == 4
        self._levels = 2**bits - 1
        self._group_size = group_size

    def stored_bytes(self, slots: int, hidden: int) -> int:
        full, rest = divmod(slots, self._group_size)
        return full * self._group_bytes(self._group_size, hidden) + (self._group_bytes(rest, hidden) if rest else 0)

    def quantize(self, plane: Raw, kind: FloatType, into: Bytes) -> bool:
        at, largest = 0, 0.0
        for begin in range(0, len(plane), self._group_size):
            group = plane[begin : begin + self._group_size]
            rows, hidden = group.shape
            scales = into[at : at + _SCALE_BYTES * hidden].view("<u2").reshape(2, hidden)
            at += _SCALE_BYTES * hidden
            codes = into[at : at + self._code_rows(rows) * hidden].reshape(-1, hidden)
            at += codes.size
            for _, columns in tiles(rows, hidden, rows):
                floats = np.empty((rows, columns.stop - columns.start), np.float32)
                kind.read(group[:, columns], floats)
                low, high = floats.min(axis=0), floats.max(axis=0)
                here = float(np.maximum(high, -low).max())
                if not kind.within(here) and not 0 < here < kind.least:  # small beside a larger one is fine
                    return False
                largest = max(largest, here)
                self._pack(self._quantized(floats, low, high, scales[:, columns]), codes[:, columns])
        return kind.within(largest)

    def restore(self, stored: Bytes, kind: FloatType, plane: Raw) -> None:
        at = 0
        for begin in range(0, len(plane), self._group_size):
            group = plane[begin : begin + self._group_size]
            rows, hidden = group.shape
            scales = stored[at : at + _SCALE_BYTES * hidden].view("<u2").reshape(2, hidden)
            at += _SCALE_BYTES * hidden
            codes = stored[at : at + self._code_rows(rows) * hidden].reshape(-1, hidden)
            at += codes.size
            offset, step = (_widened(each) for each in scales)
            if not (np.abs(offset) < 2.0**15).all() or not ((step >= _STEP_MIN) & (step < 2.0**15)).all():
                raise DamagedObjectError(f"{self._name}: an offset or a step that nothing is stored with")
            for _, columns in tiles(rows, hidden, rows):
                floats = self._unpack(codes[:, columns], rows)
                floats *= step[columns]
                floats += offset[columns]
                kind.write(floats, group[:, columns])

    def _group_bytes(self, rows: int, hidden: int) -> int:
        return (_SCALE_BYTES + self._code_rows(rows)) * hidden

    def _code_rows(self, rows: int) -> int:
        return (rows + 1) // 2 if self._halved else rows

    def _quantized(self, floats: Floats, low: Floats, high: Floats, scales: Halves) -> Bytes:
        """Codes of a group, whose offsets and steps are written to `scales`.  Overwrites `floats`."""
        offset = _rounded(low, upwards=False)
        step = _rounded(np.maximum((high - _widened(offset)) / np.float32(self._levels), _STEP_MIN), upwards=True)
        scales[0], scales[1] = offset, step
        floats -= _widened(offset)
        floats *= np.float32(1) / _widened(step)
        floats += np.float32(0.5)  # the step reaches the largest value, so nothing comes to one more than the last code
        return floats.astype(np.uint8)

    def _pack(self, codes: Bytes, into: Bytes) -> None:
        if not self._halved:
            into[:] = codes
            return
        half = self._code_rows(len(codes))
        into[:] = codes[:half]
        into[: len(codes) - half] |= codes[half:] << np.uint8(4)

    def _unpack(self, stored: Bytes, rows: int) -> Floats:
        floats = np.empty((rows, stored.shape[1]), np.float32)
        if self._halved:
            floats[: len(stored)] = stored & np.uint8(0x0F)
            floats[len(stored) :] = stored[: rows - len(stored)] >> np.uint8(4)
        else:
            floats[:] = stored
        return floats


class IntegerSerde(QuantizedPlanes):
    """Reads what was written with any group size."""

    def __init__(self, name: str, bits: int, group_size: int) -> None:
        self._bits = bits
        # Half a step, which is up to 2^-6 wider than the range asks for, and the rounding of the result to bfloat16.
        levels = 2**bits - 1
        bound = (1 + 2.0**-6) / levels + 2.0**-8 * (1 + 1 / levels)
        super().__init__(name, IntegerPlanes(name, bits, group_size), bound, _GROUP.pack(group_size))

    def _codec_of(self, parameters: bytes) -> PlaneCodec:
        if parameters == self._parameters:
            return self._codec
        if len(parameters) != 1 + _GROUP.size or parameters[0] != FORMAT:
            raise self._damaged(f"parameters {parameters.hex()[:32]} are none of this serde's")
        (group_size,) = _GROUP.unpack_from(parameters, 1)
        if group_size < 2:
            raise self._damaged(f"groups of {group_size} tokens")
        return IntegerPlanes(self._name, self._bits, group_size)


def open_int8(settings: Int8Settings) -> IntegerSerde:
    return IntegerSerde("int8", 8, settings.group_size)


def open_int4(settings: Int4Settings) -> IntegerSerde:
    return IntegerSerde("int4", 4, settings.group_size)


def _rounded(values: Floats, *, upwards: bool) -> Halves:
    """As bfloat16, towards one side: no value becomes larger, or none smaller.  Finite values."""
    bits = values.view(np.uint32)
    inexact = (bits & 0xFFFF) != 0
    away = inexact & ((bits >> 31 == 0) == upwards)  # away from zero: cutting the lower half off goes towards it
    halves: Halves = ((bits >> 16) + away).astype(np.uint16)
    return halves


def _widened(halves: Halves) -> Floats:
    return (halves.astype(np.uint32) << 16).view(np.float32)
