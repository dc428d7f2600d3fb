"""Lossy serdes: no finite value differs by more than what is declared, and what no scale suits comes back to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from lmcache_core import ObjectLayout
from lmcache_serde.elements import FLOATS
from lmcache_serde.fp8 import open_fp8
from lmcache_serde.integers import Int4Settings, Int8Settings, open_int4, open_int8
from lmcache_serde.quantized_planes import QuantizedPlanes
from plugins.serde.tests.round_trip import decode, encode

FEW = settings(max_examples=40, deadline=None)

SERDES: dict[str, QuantizedPlanes] = {
    "fp8": open_fp8(None),
    "int8": open_int8(Int8Settings(group_size=5)),
    "int8, 64": open_int8(Int8Settings()),
    "int4": open_int4(Int4Settings(group_size=6)),
    "int4, 32": open_int4(Int4Settings()),
}
EACH = pytest.mark.parametrize("serde", SERDES.values(), ids=list(SERDES))
TYPES = pytest.mark.parametrize("dtype", FLOATS)
PREFIX = 14


def raw(values: NDArray[np.float32], dtype: str) -> NDArray[Any]:
    """As the type has them, cut off."""
    return (values.view(np.uint32) >> 16).astype(np.uint16) if dtype == "bfloat16" else values.astype(FLOATS[dtype].raw)


def floats(stored: bytes, dtype: str) -> NDArray[np.float64]:
    array = np.frombuffer(stored, FLOATS[dtype].raw)
    if dtype == "bfloat16":
        array = (array.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(invalid="ignore"):
        return array.astype(np.float64)


def round_trip(serde: QuantizedPlanes, layout: ObjectLayout, payload: bytes) -> bytes:
    return decode(serde, layout, encode(serde, layout, payload))


def worst(serde: QuantizedPlanes, layout: ObjectLayout, payload: bytes) -> float:
    """The largest error, as a share of the bound."""
    given_values = floats(payload, layout.dtype)
    error = np.abs(floats(round_trip(serde, layout, payload), layout.dtype) - given_values).max()
    largest = np.abs(given_values).max()
    return float(error / (serde.error_bound * largest)) if largest else float(error)


@EACH
@TYPES
@FEW
@given(data=st.data())
def test_any_finite_values_come_back_within_the_bound(serde: QuantizedPlanes, dtype: str, data: st.DataObject) -> None:
    """All bit patterns of the type, the smallest and the largest included."""
    slots, hidden = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 6))
    layout = ObjectLayout(2, 1, slots, hidden, dtype)
    words = np.uint32 if dtype == "float32" else np.uint16
    bits = data.draw(npst.arrays(words, 2 * slots * hidden))
    values = floats(bits.tobytes(), dtype)
    bits[~np.isfinite(values)] = 0
    assert worst(serde, layout, bits.tobytes()) <= 1


@EACH
@TYPES
@FEW
@given(
    seed=st.integers(0, 2**32 - 1), slots=st.integers(1, 70), hidden=st.integers(1, 40),
    scale=st.floats(-24, 16), spread=st.floats(0, 12), offset=st.floats(-8, 8),
)  # fmt: skip
def test_tensors_come_back_within_the_bound(
    serde: QuantizedPlanes, dtype: str, seed: int, slots: int, hidden: int, scale: float, spread: float, offset: float
) -> None:
    """Channels of different ranges, with an offset, at any magnitude."""
    chance = np.random.default_rng(seed)
    values = chance.standard_normal((2, 2, slots, hidden)) * 2.0 ** (scale + spread * chance.standard_normal(hidden))
    values = np.clip(values + offset * 2.0**scale, -60_000, 60_000).astype(np.float32)
    assert worst(serde, ObjectLayout(2, 2, slots, hidden, dtype), raw(values, dtype).tobytes()) <= 1


@EACH
@TYPES
def test_several_tiles_come_back_within_the_bound(serde: QuantizedPlanes, dtype: str) -> None:
    layout = ObjectLayout(2, 1, 100, 2500, dtype)
    values = np.random.default_rng(1).standard_normal(2 * 100 * 2500).astype(np.float32)
    payload = raw(values, dtype).tobytes()
    assert 0.2 < worst(serde, layout, payload) <= 1, "a bound that nothing comes near says nothing"
    assert len(encode(serde, layout, payload)) < 0.93 * layout.payload_bytes


@EACH
@TYPES
@pytest.mark.parametrize("odd", ["nan", "inf", "-inf", "huge", "tiny"])
def test_a_plane_that_no_scale_suits_comes_back_to_the_bit(serde: QuantizedPlanes, dtype: str, odd: str) -> None:
    """NaNs keep their payload, zeros their sign; the other planes are quantized as ever."""
    layout = ObjectLayout(2, 2, 12, 16, dtype)
    values = np.random.default_rng(1).standard_normal((4, 12, 16)).astype(np.float32)
    values[2, 3] = -0.0
    if odd == "tiny":
        values[2] *= np.float32(2.0**-18 if dtype == "float16" else 2.0**-115)
    else:
        values[2, 7, 5] = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf, "huge": 20_000.0}[odd]
    payload = raw(values, dtype)
    if odd == "nan":
        payload.view(f"<u{payload.itemsize}")[2, 7, 6] = 0x7F800001 if dtype == "float32" else 0x7FA1
    back = round_trip(serde, layout, payload.tobytes())
    size = len(back) // 4
    assert back[2 * size : 3 * size] == payload[2].tobytes()
    assert all(back[k * size : (k + 1) * size] != payload[k].tobytes() for k in (0, 1, 3))


@EACH
@TYPES
def test_zeros_stay_zeros(serde: QuantizedPlanes, dtype: str) -> None:
    layout = ObjectLayout(2, 2, 12, 16, dtype)
    stored = encode(serde, layout, bytes(layout.payload_bytes))
    assert len(stored) < layout.payload_bytes or FLOATS[dtype].raw.itemsize == 2
    assert not floats(decode(serde, layout, stored), dtype).any()


@EACH
def test_a_cache_that_is_quantized_already_is_left_alone(serde: QuantizedPlanes) -> None:
    for dtype in ("uint8", "int8", "float8_e4m3fn", "float64"):
        layout = ObjectLayout(2, 2, 12, 16, dtype)
        payload = np.random.default_rng(1).bytes(layout.payload_bytes)
        assert round_trip(serde, layout, payload) == payload


@pytest.mark.parametrize(("name", "least"), [("fp8", 1.98), ("int8, 64", 1.88), ("int4, 32", 3.19)])
def test_the_ratio_for_bfloat16_is_the_one_that_is_written_down(name: str, least: float) -> None:
    layout = ObjectLayout(2, 2, 256, 128, "bfloat16")
    payload = raw(np.random.default_rng(1).standard_normal(2 * 2 * 256 * 128).astype(np.float32), "bfloat16").tobytes()
    assert layout.payload_bytes / len(encode(SERDES[name], layout, payload)) >= least


def test_a_channel_with_outliers_does_not_cost_the_others() -> None:
    """What a scale for the whole tensor would do to them."""
    layout = ObjectLayout(1, 1, 64, 32, "bfloat16")
    values = np.random.default_rng(1).standard_normal((64, 32)).astype(np.float32)
    values[:, 3] *= 4000
    payload = raw(values, "bfloat16").tobytes()
    others = np.arange(32) != 3
    exact = floats(payload, "bfloat16").reshape(64, 32)[:, others]
    for name, bound in (("fp8", 0.03), ("int8, 64", 0.01), ("int4, 32", 0.12)):
        back = floats(round_trip(SERDES[name], layout, payload), "bfloat16").reshape(64, 32)[:, others]
        assert np.linalg.norm(back - exact) / np.linalg.norm(exact) < bound


@FEW
@given(st.integers(2, 200), st.integers(1, 80))
def test_groups_of_any_size_are_read_by_an_instance_with_another(group_size: int, slots: int) -> None:
    layout = ObjectLayout(1, 2, slots, 8, "float32")
    payload = np.random.default_rng(slots).standard_normal((2, slots, 8)).astype(np.float32).tobytes()
    for name, writer in (
        ("int8", open_int8(Int8Settings(group_size=group_size))),
        ("int4", open_int4(Int4Settings(group_size=group_size))),
    ):
        stored = encode(writer, layout, payload)
        back = decode(SERDES[name], layout, stored, parameters=writer.parameters())
        assert back == decode(writer, layout, stored)
        assert np.abs(np.frombuffer(back, "f4") - np.frombuffer(payload, "f4")).max() < 0.5
