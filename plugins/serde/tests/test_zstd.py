"""`zstd` gives back every bit, keeps its bounds, and is never made to allocate what an object says of itself."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from lmcache_core import ITEM_BYTES, DamagedObjectError, ObjectLayout, opaque_layout
from lmcache_serde import byte_planes
from lmcache_serde.zstd import BLOCK_BYTES, ZstdSettings, open_zstd
from plugins.serde.tests.round_trip import decode, encode

FEW = settings(max_examples=40, deadline=None)

SERDE = open_zstd(ZstdSettings())
PREFIX = 5


def kv_like(layout: ObjectLayout) -> bytes:
    values = np.random.default_rng(3).standard_normal(layout.payload_bytes // 2).astype(np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()


@FEW
@given(st.integers(1, 3 * BLOCK_BYTES), st.sampled_from([1, 2, 4, 8, None]), st.sampled_from([0, 1, 3]), st.binary())
def test_bytes_of_any_length_come_back(length: int, element_bytes: int | None, level: int, pattern: bytes) -> None:
    payload = (pattern * (length // max(len(pattern), 1) + 1))[:length] if pattern else bytes(length)
    serde = open_zstd(ZstdSettings.model_validate({"level": level, "element_bytes": element_bytes}))
    layout = opaque_layout(length)
    stored = encode(serde, layout, payload)
    assert len(stored) <= serde.stored_bytes_max(layout)
    assert decode(SERDE, layout, stored) == payload


@pytest.mark.parametrize("dtype", ITEM_BYTES)
@pytest.mark.parametrize("slots", [1, 7, 256])
def test_every_element_type_comes_back_over_several_blocks(dtype: str, slots: int) -> None:
    layout = ObjectLayout(2, 3, slots, 321, dtype)
    payload = np.random.default_rng(slots).bytes(layout.payload_bytes)
    assert decode(SERDE, layout, encode(SERDE, layout, payload)) == payload


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_planes_are_bytes_of_equal_significance(size: int) -> None:
    elements = np.arange(40 * size, dtype=np.uint8)
    planes = np.empty((size, 40), np.uint8)
    byte_planes.split(elements, planes)
    assert all((planes[k] == elements[k::size]).all() for k in range(size))
    back = np.empty_like(elements)
    byte_planes.join(planes, back)
    assert (back == elements).all()


def test_kv_becomes_smaller_and_noise_hardly_larger() -> None:
    layout = ObjectLayout(2, 2, 256, 512, "bfloat16")
    assert len(encode(SERDE, layout, kv_like(layout))) < 0.72 * layout.payload_bytes
    noise = np.random.default_rng(4).bytes(layout.payload_bytes)
    assert len(encode(SERDE, layout, noise)) <= 1.0001 * layout.payload_bytes + 64


def test_the_width_that_a_setting_names_helps_where_the_layout_says_bytes() -> None:
    layout = ObjectLayout(2, 2, 256, 512, "bfloat16")
    opaque, payload = opaque_layout(layout.payload_bytes), kv_like(layout)
    configured = open_zstd(ZstdSettings(element_bytes=2))
    assert encode(configured, opaque, payload) == encode(SERDE, layout, payload)
    assert len(encode(configured, opaque, payload)) < len(encode(SERDE, opaque, payload))


def test_another_level_reads_it() -> None:
    layout = ObjectLayout(1, 2, 64, 64, "bfloat16")
    payload = kv_like(layout)
    for level in (0, 1, 19):
        writer = open_zstd(ZstdSettings(level=level))
        stored = encode(writer, layout, payload)
        assert decode(SERDE, layout, stored, parameters=writer.parameters()) == payload


@FEW
@given(st.data())
def test_altered_bytes_are_rejected_or_have_the_right_length(data: st.DataObject) -> None:
    layout = ObjectLayout(2, 1, 16, 33, "bfloat16")
    changed = bytearray(encode(SERDE, layout, kv_like(layout)))
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(changed) + 3))
    try:
        decode(SERDE, layout, bytes(changed[:cut]) + bytes(max(0, cut - len(changed))))
    except DamagedObjectError:
        pass


@FEW
@given(st.binary(max_size=300), st.integers(1, 200))
def test_bytes_that_are_not_an_object_are_rejected(stored: bytes, length: int) -> None:
    layout = opaque_layout(length)
    try:
        back = decode(SERDE, layout, stored)
    except DamagedObjectError:
        return
    assert len(back) == length


def test_a_frame_that_says_it_is_huge_is_not_believed() -> None:
    """The library would allocate what the frame declares."""
    layout = opaque_layout(1000)
    frame = zstandard.ZstdCompressor().compress(bytes(64 * 2**20))
    stored = struct.pack("<BI", 1, BLOCK_BYTES) + struct.pack("<I", len(frame)) + frame
    with pytest.raises(DamagedObjectError, match="67108864"):
        decode(SERDE, layout, stored)


def test_blocks_and_elements_that_no_version_wrote_are_rejected() -> None:
    layout = opaque_layout(64)
    stored = encode(SERDE, layout, bytes(64))
    for size, block in ((0, BLOCK_BYTES), (3, BLOCK_BYTES), (255, BLOCK_BYTES), (1, 0), (1, 2**32 - 1)):
        with pytest.raises(DamagedObjectError, match="elements of"):
            decode(SERDE, layout, struct.pack("<BI", size, block) + stored[PREFIX:])


def test_the_format_of_a_later_version_is_rejected() -> None:
    layout = opaque_layout(64)
    stored = encode(SERDE, layout, bytes(64))
    for parameters in (b"", b"\2\0"):
        with pytest.raises(DamagedObjectError, match="format"):
            decode(SERDE, layout, stored, parameters=parameters)


def test_a_plane_that_does_not_compress_is_stored_as_it_was() -> None:
    """And is found in the stored bytes, so that reading it is a copy."""
    layout = ObjectLayout(1, 1, 128, 512, "uint8")
    noise = np.random.default_rng(5).bytes(layout.payload_bytes)
    assert noise in encode(SERDE, layout, noise)
