"""The codes are e4m3fn to the nearest, ties to even, whichever way they are computed."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lmcache_core import ObjectLayout
from lmcache_serde.fp8 import open_fp8
from plugins.serde.tests.round_trip import decode, encode

FEW = settings(max_examples=40, deadline=None)

SERDE = open_fp8(None)
PREFIX = 14 + 1
Array = NDArray[Any]


def meaning(code: int) -> Fraction:
    """Of a code of e4m3fn, by its definition."""
    exponent, mantissa = code >> 3 & 15, code & 7
    value = (
        Fraction(mantissa, 8) * Fraction(2) ** -6
        if not exponent
        else Fraction(8 + mantissa, 8) * Fraction(2) ** (exponent - 7)
    )
    return -value if code & 0x80 else value


MEANINGS = sorted((meaning(code), code & 1, code) for code in range(127))


def nearest(value: Fraction) -> int:
    """The code of a magnitude."""
    return min(MEANINGS, key=lambda each: (abs(each[0] - value), each[1]))[2]


def codes(values: Array, dtype: str) -> tuple[Array, Array]:
    """Scales and codes of one plane."""
    slots, hidden = values.shape
    array = (values.view(np.uint32) >> 16).astype(np.uint16) if dtype == "bfloat16" else values
    stored = encode(SERDE, ObjectLayout(1, 1, slots, hidden, dtype), array.tobytes())
    body = np.frombuffer(stored, np.uint8)[PREFIX:]
    return body[:hidden], body[hidden:].reshape(slots, hidden)


@FEW
@given(st.lists(st.integers(0, 0xFFFF), min_size=2, max_size=60))
def test_codes_are_the_nearest_there_are(patterns: list[int]) -> None:
    """Any bfloat16 from 2^-100 to 2^14, against exact arithmetic."""
    bits = np.array(patterns, np.uint32) << 16
    values = bits.view(np.float32)
    keep = np.isfinite(values) & (np.abs(values) < 2**14) & ((np.abs(values) >= 2.0**-90) | (values == 0))
    values = np.where(keep, values, np.float32(1)).astype(np.float32)[:, None]
    for dtype in ("bfloat16", "float32"):
        scales, found = codes(values, dtype)
        scale = Fraction(2) ** (int(scales[0]) - 127 - 7)
        for value, code in zip(values[:, 0], found[:, 0], strict=True):
            assert code & 0x7F == nearest(abs(Fraction(float(value))) / scale)
            assert code == code & 0x7F or value < 0 or (value == 0 and np.signbit(value))


@FEW
@given(st.integers(0, 2**32 - 1), st.integers(1, 300), st.integers(1, 40), st.floats(0, 30))
def test_the_fast_way_for_bfloat16_gives_the_codes_of_the_general_one(
    seed: int, slots: int, hidden: int, spread: float
) -> None:
    """Few values below the normal ones, many, and none."""
    chance = np.random.default_rng(seed)
    values = chance.standard_normal((slots, hidden)) * 2.0 ** (-spread * chance.random((slots, hidden)))
    values = (values.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)
    for fast, general in zip(codes(values, "bfloat16"), codes(values, "float32"), strict=True):
        assert (fast == general).all()
    layout = ObjectLayout(1, 1, slots, hidden, "bfloat16")
    wide = ObjectLayout(1, 1, slots, hidden, "float32")
    half = (values.view(np.uint32) >> 16).astype(np.uint16)
    back = np.frombuffer(decode(SERDE, layout, encode(SERDE, layout, half.tobytes())), np.uint16)
    expected = np.frombuffer(decode(SERDE, wide, encode(SERDE, wide, values.tobytes())), np.uint32)
    assert (back == expected >> 16).all()
    assert not (expected & 0xFFFF).any(), "a code times a power of two is a bfloat16 exactly"


def test_the_codes_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    chance = np.random.default_rng(1)
    values = (chance.standard_normal((256, 64)) * 2.0 ** (-20 * chance.random((256, 64)))).astype(np.float32)
    scales, found = codes(values, "float32")
    scaled = values * 2.0 ** -(scales.astype(np.float64) - 127 - 7)
    expected = torch.from_numpy(scaled.astype(np.float32)).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    assert (found == expected).all()
