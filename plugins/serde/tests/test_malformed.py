"""Bytes that no version wrote: lossy serdes reject them, or fill exactly what they were given."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmcache_core import DamagedObjectError, ObjectLayout
from lmcache_serde.fp8 import open_fp8
from lmcache_serde.integers import Int4Settings, Int8Settings, open_int4, open_int8
from lmcache_serde.quantized_planes import QuantizedPlanes
from plugins.serde.tests.round_trip import decode, encode

FEW = settings(max_examples=40, deadline=None)

SERDES: dict[str, QuantizedPlanes] = {
    "fp8": open_fp8(None),
    "int8": open_int8(Int8Settings(group_size=5)),
    "int4": open_int4(Int4Settings(group_size=3)),
}
EACH = pytest.mark.parametrize("serde", SERDES.values(), ids=list(SERDES))
LAYOUTS = [ObjectLayout(2, 1, 15, 5, dtype) for dtype in ("bfloat16", "float16", "float32")]
PREFIX = 14


def stored_for(serde: QuantizedPlanes, layout: ObjectLayout) -> bytes:
    values = np.random.default_rng(1).standard_normal(layout.payload_bytes // 2).astype(np.float16)
    return encode(serde, layout, values.tobytes()[: layout.payload_bytes])


@EACH
@FEW
@given(data=st.data())
def test_altered_bytes_are_rejected_or_harmless(serde: QuantizedPlanes, data: st.DataObject) -> None:
    layout = data.draw(st.sampled_from(LAYOUTS))
    changed = bytearray(stored_for(serde, layout))
    for _ in range(data.draw(st.integers(1, 6))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(serde, layout, bytes(changed))
    except DamagedObjectError:
        pass


@EACH
@FEW
@given(stored=st.binary(max_size=300), parameters=st.binary(max_size=8))
def test_bytes_that_are_not_an_object_are_rejected_or_harmless(
    serde: QuantizedPlanes, stored: bytes, parameters: bytes
) -> None:
    for given_parameters in (parameters, serde.parameters()):
        try:
            decode(serde, LAYOUTS[0], stored, parameters=given_parameters)
        except DamagedObjectError:
            pass


@EACH
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_other_length_is_rejected(serde: QuantizedPlanes, layout: ObjectLayout) -> None:
    stored = stored_for(serde, layout)
    for length in range(len(stored)):
        with pytest.raises(DamagedObjectError):
            decode(serde, layout, stored[:length])
    with pytest.raises(DamagedObjectError):
        decode(serde, layout, stored + b"\0")


@EACH
def test_an_object_of_another_geometry_is_rejected(serde: QuantizedPlanes) -> None:
    """Even one that has as many bytes."""
    stored = stored_for(serde, LAYOUTS[0])
    for other in (
        ObjectLayout(2, 1, 5, 15, "bfloat16"),
        ObjectLayout(2, 1, 15, 5, "float16"),
        ObjectLayout(1, 1, 15, 10, "bfloat16"),
    ):
        with pytest.raises(DamagedObjectError):
            decode(serde, other, stored)


@EACH
def test_scales_that_nothing_is_stored_with_are_rejected(serde: QuantizedPlanes) -> None:
    layout = LAYOUTS[0]
    changed = bytearray(stored_for(serde, layout))
    changed[PREFIX + 2 : PREFIX + 2 + 10] = struct.pack("<5H", *[0x7FFF] * 5)
    with pytest.raises(DamagedObjectError):
        decode(serde, layout, bytes(changed))


@EACH
def test_the_format_of_a_later_version_is_rejected(serde: QuantizedPlanes) -> None:
    stored = stored_for(serde, LAYOUTS[0])
    for parameters in (b"", b"\2" + serde.parameters()[1:], serde.parameters() + b"\0"):
        with pytest.raises(DamagedObjectError, match=r"format|parameters"):
            decode(serde, LAYOUTS[0], stored, parameters=parameters)
