"""Serdes that are simple enough to be right, and what opens adapters with them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from lmcache_client.layout import ObjectLayout
from lmcache_core import NamedSerde
from lmcache_core.app.serdes import KnownLayouts
from lmcache_core.builtin.memory_l2 import MemoryAdapter, MemorySettings
from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.l2_adapter import AdapterContext, L2Adapter
from lmcache_core.contracts.serde import Serde
from lmcache_core.model.errors import DamagedObjectError
from lmcache_core.model.keys import ObjectKey
from lmcache_serde.chain.adapter import ChainedAdapter
from lmcache_serde.chain.links import SerdeChain
from lmcache_serde.chain.scratch import scratch_region

MIB: Final = 2**20


class Xor(Serde):
    """As many bytes as it was given."""

    def __init__(self, mask: int = 0x5A) -> None:
        self._table = bytes(byte ^ mask for byte in range(256))
        self._mask = bytes([mask])

    def parameters(self) -> bytes:
        return self._mask

    def stored_bytes_max(self, layout: ObjectLayout) -> int:
        return layout.payload_bytes

    def encode(self, key: ObjectKey, layout: ObjectLayout, payload: memoryview, into: memoryview) -> int:
        into[: len(payload)] = bytes(payload).translate(self._table)
        return len(payload)

    def decode(
        self, key: ObjectKey, layout: ObjectLayout, parameters: bytes, stored: memoryview, into: memoryview
    ) -> None:
        if parameters != self._mask:
            raise DamagedObjectError("another mask")
        if len(stored) != len(into):
            raise DamagedObjectError("another length")
        into[:] = bytes(stored).translate(self._table)


class Deflate(Serde):
    """A length that follows from the content; it may be longer than what was given."""

    def stored_bytes_max(self, layout: ObjectLayout) -> int:
        return layout.payload_bytes + layout.payload_bytes // 1000 + 64

    def encode(self, key: ObjectKey, layout: ObjectLayout, payload: memoryview, into: memoryview) -> int:
        stored = zlib.compress(payload, 1)
        into[: len(stored)] = stored
        return len(stored)

    def decode(
        self, key: ObjectKey, layout: ObjectLayout, parameters: bytes, stored: memoryview, into: memoryview
    ) -> None:
        engine = zlib.decompressobj()
        try:
            data = engine.decompress(stored, len(into) + 1)
        except zlib.error as error:
            raise DamagedObjectError(str(error)) from None
        if len(data) != len(into) or not engine.eof or engine.unused_data:
            raise DamagedObjectError(f"{len(data)} bytes")
        into[:] = data


class HalfPrecision(Serde):
    """float32 as float16, for payloads of small numbers."""

    needs_elements = True
    lossless = False
    error_bound = 2**-10

    def stored_bytes_max(self, layout: ObjectLayout) -> int:
        if layout.dtype != "float32":
            raise ValueError(f"{layout} is not made of float32")
        return layout.payload_bytes // 2

    def encode(self, key: ObjectKey, layout: ObjectLayout, payload: memoryview, into: memoryview) -> int:
        values = struct.unpack(f"<{len(payload) // 4}f", payload)
        small = [value if abs(value) < 60_000 else 0.0 for value in values]
        into[: 2 * len(values)] = struct.pack(f"<{len(values)}e", *small)
        return 2 * len(values)

    def decode(
        self, key: ObjectKey, layout: ObjectLayout, parameters: bytes, stored: memoryview, into: memoryview
    ) -> None:
        if 2 * len(stored) != len(into):
            raise DamagedObjectError(f"{len(stored)} bytes")
        into[:] = struct.pack(f"<{len(stored) // 2}f", *struct.unpack(f"<{len(stored) // 2}e", stored))


SERDES: Final[dict[str, type[Serde]]] = {"xor": Xor, "deflate": Deflate, "half": HalfPrecision}


def chain_of(*links: str | tuple[str, Serde]) -> SerdeChain:
    """By the names of `SERDES`, or of serdes that are given."""
    return SerdeChain(
        [NamedSerde(*link) if isinstance(link, tuple) else NamedSerde(link, SERDES[link]()) for link in links]
    )


def wrapped(
    context: AdapterContext,
    open_inner: Any,
    chain: SerdeChain,
    *,
    layouts: KnownLayouts | None = None,
    memory_bytes: int = 400 * MIB,
    workers: int = 2,
) -> ChainedAdapter:
    """`open_inner(context)` behind the chain."""
    region = scratch_region(memory_bytes)
    inner: L2Adapter = open_inner(replace(context, regions=(*context.regions, region)))
    return ChainedAdapter(context, inner, chain, region, layouts or KnownLayouts(), workers)


def memory_without(settings: MemorySettings, context: AdapterContext, missing: Capability) -> MemoryAdapter:
    adapter = MemoryAdapter(settings, context)
    adapter.capabilities = adapter.capabilities & ~missing
    return adapter


def _open(
    settings: MemorySettings, context: AdapterContext, names: Sequence[str], missing: Capability
) -> ChainedAdapter:
    return wrapped(context, lambda own: memory_without(settings, own, missing), chain_of(*names))


def open_variable(settings: MemorySettings, context: AdapterContext) -> ChainedAdapter:
    """What it stores is shorter or longer than what it is given, so that what it says of bytes is not a requirement."""
    return _open(settings, context, ["deflate"], Capability.USAGE)


def open_chain(settings: MemorySettings, context: AdapterContext) -> ChainedAdapter:
    """Both areas between serdes are in use."""
    return _open(settings, context, ["deflate", "xor", "deflate", "xor"], Capability.USAGE)


def open_fixed(settings: MemorySettings, context: AdapterContext) -> ChainedAdapter:
    """All objects of a layout are stored with one length, that of their payload."""
    return _open(settings, context, ["xor"], Capability.ANY_LENGTH)


def open_padded(settings: MemorySettings, context: AdapterContext) -> ChainedAdapter:
    """The same, with padding."""
    return _open(settings, context, ["deflate", "xor"], Capability.ANY_LENGTH | Capability.USAGE)
