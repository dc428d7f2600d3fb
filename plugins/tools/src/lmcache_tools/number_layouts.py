"""Numbers for serdes that are made for them, where no engine says what its chunks look like."""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd
from typing import Final

from lmcache_client.errors import ConfigError
from lmcache_client.layout import ITEM_BYTES, ObjectLayout
from lmcache_core.app.serdes import KnownLayouts
from lmcache_core.contracts.l2_adapter import L2Adapter
from lmcache_core.contracts.serde import SerdeAdapter
from lmcache_core.model.object_header import HEADER_BYTES

_TYPES: Final = ("bfloat16", "float16", "float32")
_SLOTS: Final = 256
_KEPT, _SET = b"\xff\xbf", b"\x00\x3c"


class NumberLayouts(KnownLayouts):
    """Every payload is one of numbers, as far as its length allows: those of a model of one layer with tokens as in a chunk."""

    def __init__(self) -> None:
        super().__init__()
        self._dtype = _TYPES[0]

    def elements(self, fingerprint: bytes, payload_bytes: int) -> ObjectLayout | None:
        return _layout(payload_bytes, self._dtype)

    def suit(self, name: str, adapter: L2Adapter, object_bytes: Iterable[int]) -> None:
        """Choose a type of numbers that the serdes of this adapter take, for objects of these lengths.  Raises ConfigError,
        where they take none, that begins with `name`."""
        if not isinstance(adapter, SerdeAdapter) or not adapter.needs_elements:
            return
        faults = []
        for dtype in _TYPES:
            fault = next((fault for size in object_bytes if (fault := _fault(adapter, size, dtype))), None)
            if fault is None:
                self._dtype = dtype
                return
            faults.append(fault)
        raise ConfigError(f"{name}: its serdes take no numbers that were tried: {'; '.join(faults)}")


def lossy_serdes(adapter: L2Adapter) -> tuple[str, ...]:
    """By name, those behind which other numbers come back than were stored."""
    return adapter.lossy if isinstance(adapter, SerdeAdapter) else ()


def as_numbers(noise: bytes) -> bytes:
    """The same, with a few bits set so that they are numbers of ordinary size, whichever of the types they are read as:
    noise has NaNs, which quantizers leave alone."""
    length = len(noise)
    kept, held = (int.from_bytes((word * (length // 2 + 1))[:length], "little") for word in (_KEPT, _SET))
    return (int.from_bytes(noise, "little") & kept | held).to_bytes(length, "little")


def _layout(payload_bytes: int, dtype: str) -> ObjectLayout | None:
    count, rest = divmod(payload_bytes, ITEM_BYTES[dtype])
    slots = gcd(count, _SLOTS)
    return None if rest or not count else ObjectLayout(1, 1, slots, count // slots, dtype)


def _fault(adapter: SerdeAdapter, object_bytes: int, dtype: str) -> str | None:
    layout = _layout(object_bytes - HEADER_BYTES, dtype)
    return adapter.fault_of(layout) if layout else f"{object_bytes} bytes hold no whole number of {dtype}"
