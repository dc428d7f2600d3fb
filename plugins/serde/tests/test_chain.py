"""Serdes one behind the other: the first has the chunk's layout, the others are given bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lmcache_core import DamagedObjectError, ObjectLayout, Serde, opaque_layout
from lmcache_serde.aesgcm import AesGcmSettings, open_aesgcm
from lmcache_serde.fp8 import open_fp8
from lmcache_serde.zstd import ZstdSettings, open_zstd
from plugins.serde.tests.round_trip import MASTER, decode, encode

LAYOUT = ObjectLayout(2, 2, 256, 128, "bfloat16")
KEYS: dict[str, Any] = {"keys": [{"value": MASTER}]}


def payload() -> bytes:
    values = np.random.default_rng(1).standard_normal(LAYOUT.payload_bytes // 2).astype(np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()


def chain() -> list[Serde]:
    return [open_fp8(None), open_zstd(ZstdSettings()), open_aesgcm(AesGcmSettings.model_validate(KEYS))]


def test_quantized_compressed_and_encrypted_comes_back_as_quantized_alone_does() -> None:
    data, layouts = payload(), [LAYOUT]
    for serde in chain():
        data = encode(serde, layouts[-1], data)
        layouts.append(opaque_layout(len(data)))
    assert len(data) < 0.45 * LAYOUT.payload_bytes
    for serde, layout in zip(reversed(chain()), reversed(layouts[:-1]), strict=True):
        data = decode(serde, layout, data)
    assert data == decode(open_fp8(None), LAYOUT, encode(open_fp8(None), LAYOUT, payload()))


def test_only_the_quantizers_ask_for_elements() -> None:
    assert [serde.needs_elements for serde in chain()] == [True, False, False]
    assert [serde.lossless for serde in chain()] == [False, True, True]


def test_a_link_that_is_given_something_else_rejects_it() -> None:
    fp8, zstd, _ = chain()
    quantized = encode(fp8, LAYOUT, payload())
    with pytest.raises(DamagedObjectError):
        decode(zstd, LAYOUT, quantized)
    with pytest.raises(DamagedObjectError):
        decode(fp8, LAYOUT, encode(zstd, opaque_layout(len(quantized)), quantized))
