"""An object through a serde and back, for tests that choose its key or alter what is stored."""

from __future__ import annotations

import dataclasses

from lmcache_core import ObjectKey, ObjectLayout, Serde
from lmcache_devkit import object_key

CANARY = b"\xa5"
MASTER = "7f2c9d" + "0123456789abcdef" * 3 + "e1d2c3b4a5"
OTHER_MASTER = MASTER[::-1]


def tenant_key(salt: str, number: int = 1) -> ObjectKey:
    key = object_key(number)
    return ObjectKey(dataclasses.replace(key.space, cache_salt=salt), key.chunk_hash)


def encode(serde: Serde, layout: ObjectLayout, payload: bytes, key: ObjectKey | None = None) -> bytes:
    into = bytearray(CANARY) * serde.stored_bytes_max(layout)
    length = serde.encode(key or object_key(1), layout, memoryview(payload), memoryview(into))
    assert 0 < length <= len(into)
    return bytes(into[:length])


def decode(
    serde: Serde,
    layout: ObjectLayout,
    stored: bytes,
    *,
    key: ObjectKey | None = None,
    parameters: bytes | None = None,
) -> bytes:
    into = bytearray(CANARY) * layout.payload_bytes
    given = serde.parameters() if parameters is None else parameters
    serde.decode(key or object_key(1), layout, given, memoryview(stored).toreadonly(), memoryview(into))
    return bytes(into)
